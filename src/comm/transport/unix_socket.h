// Unix sockets for the hand-over: whole messages with descriptors attached, each call bounded by a deadline.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// `name` is abstract (kept by the kernel only while the socket is open).
Result<Fd> listen_unix(const std::string& name, int backlog);
Result<Fd> connect_unix(const std::string& name, Deadline deadline);
// Does not wait: an invalid Fd when nobody has connected.
Result<Fd> accept_unix(int listener);
// Waits until the listener or one of the sockets has something to read; false after `at_most`.
Result<bool> wait_readable(std::span<const Fd> sockets, int listener, std::chrono::nanoseconds at_most);
// Whether the process at the other end belongs to the same user.
bool same_user(int socket);

// Sequenced packets keep message boundaries. At most kMaxDescriptors each.
inline constexpr std::size_t kMaxDescriptors = 200;
Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors, Deadline deadline);
// Reads exactly `bytes` and at most kMaxDescriptors descriptors.
Status receive_message(int socket, std::span<std::byte> bytes, std::vector<Fd>& descriptors, Deadline deadline);

}  // namespace lockstep::comm
