// Unix sockets for what must stay on one machine and with one user: whole messages with descriptors attached, each call
// bounded by a deadline.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// A name nobody can guess, so that nobody can have taken it: "PREFIX-" and 32 hexadecimal digits.
Result<std::string> random_socket_name(std::string_view prefix);

// `name` is abstract (kept by the kernel only while the socket is open).
Result<Fd> listen_unix(const std::string& name, int backlog);
Result<Fd> connect_unix(const std::string& name, Deadline deadline);
// Does not wait: an invalid Fd when nobody has connected.
Result<Fd> accept_unix(int listener);
// Waits until the listener or one of the sockets has something to read; false at the deadline.
Result<bool> wait_readable(std::span<const Fd> sockets, int listener, Deadline deadline);

// Whether the process at the other end (on a socket that connected: the one that listens) belongs to the user that this
// one runs as; kPermission names both. In a user namespace that does not know every user, those it does not know look
// alike: a process that runs under their common number (65534) trusts nobody.
Status check_same_user(int socket);

// Sequenced packets keep message boundaries. At most kMaxDescriptors each.
inline constexpr std::size_t kMaxDescriptors = 200;
Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors, Deadline deadline);
// Reads exactly `bytes` and at most kMaxDescriptors descriptors; without `descriptors`, any that come are closed. kIo
// when this process has no descriptors left for them: `bytes` are there nevertheless.
Status receive_message(int socket, std::span<std::byte> bytes, std::vector<Fd>* descriptors, Deadline deadline);

}  // namespace lockstep::comm
