// Connections to a TCP store whose two sides have proven the key.
#pragma once

#include "lockstep/base/deadline.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_store.h"
#include "store/tcp/secure_socket.h"

namespace lockstep::comm {

// One attempt.
Result<SecureSocket> connect_once(const TcpStoreOptions& options, Deadline deadline);

// Tries again until the server answers, as TcpStore::connect says. kAborted: `interrupt_fd` became readable.
Result<SecureSocket> connect_patiently(const TcpStoreOptions& options, Deadline deadline, int interrupt_fd = -1);

}  // namespace lockstep::comm
