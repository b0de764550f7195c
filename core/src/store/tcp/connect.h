// Connections to a TCP store whose two sides have proven the key.
#pragma once

#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "lockstep/store/tcp_store.h"
#include "store/tcp/secure_socket.h"

namespace lockstep::comm {

struct StoreConnection {
  SecureSocket socket;
  std::string store;  // its welcome: a store that is started again at the same address has another one
};

// The rest of an attempt, on what connect_to() has returned. kUnavailable: the other side has closed the connection.
Result<StoreConnection> prove_key(Fd fd, const TcpStoreOptions& options, Deadline deadline);

// One attempt.
Result<StoreConnection> connect_once(const TcpStoreOptions& options, Deadline deadline);

// Tries again until the server answers, as TcpStore::connect says. kAborted: `interrupt_fd` became readable.
Result<StoreConnection> connect_patiently(const TcpStoreOptions& options, Deadline deadline, int interrupt_fd = -1);

}  // namespace lockstep::comm
