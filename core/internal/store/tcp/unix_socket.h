// Unix sockets between processes of one user on one machine: whole messages with descriptors attached, and a deadline
// for each call.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// A name that no other program can have taken, because it cannot be guessed: "PREFIX-" and 32 hexadecimal digits.
Result<std::string> random_socket_name(std::string_view prefix);

// `name` is abstract (kept by the kernel only while the socket is open).
Result<Fd> listen_unix(const std::string& name, int backlog);
// kPeerFailed: nobody listens, as when the process has ended.
Result<Fd> connect_unix(const std::string& name, Deadline deadline);
// Does not wait: an invalid Fd when no connection is waiting.
Result<Fd> accept_unix(int listener);
// Waits until the listener or one of the sockets has something to read; false at the deadline.
Result<bool> wait_readable(std::span<const Fd> sockets, int listener, Deadline deadline);

// Checks that the process at the other end (on a socket that connected: the one that listens) runs as the same user as
// this one; kPermission names both. In a user namespace all users that it does not know have the same number (65534): a
// process that runs under that number trusts no other.
Status check_same_user(int socket);

// Sequenced packets keep message boundaries. At most kMaxDescriptors each.
inline constexpr std::size_t kMaxDescriptors = 200;
Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors, Deadline deadline);
// Reads exactly `bytes` and at most kMaxDescriptors descriptors; with a null `descriptors`, any that come are closed.
// kIo when this process has no room for more descriptors: `bytes` are valid nevertheless.
Status receive_message(int socket, std::span<std::byte> bytes, std::vector<Fd>* descriptors, Deadline deadline);

}  // namespace lockstep::comm
