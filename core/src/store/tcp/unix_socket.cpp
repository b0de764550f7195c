#include "store/tcp/unix_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include "base/poll.h"
#include "base/random.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kNameBytes = 16;

socklen_t fill_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);  // the leading zero byte makes it abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

Status closed() {
  return {ErrorCode::kPeerFailed, "the other rank closed the connection while shared memory was handed over"};
}

Status wait_ready(int socket, short events, Deadline deadline, const char* what) {
  const auto ready = poll_until(socket, events, deadline);
  if (!ready.ok()) return ready.status().with_context(what);
  return ready.value() ? Status() : Status(ErrorCode::kTimeout, fmt::format("{}: no answer before the deadline", what));
}

// Whether this number stands for every user that this process's user namespace does not know.
bool is_anybody(uid_t user) {
  uid_t overflow = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
  if (user != overflow) return false;
  std::int64_t inside = 0, outside = 0, count = 0;
  std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
  return count != std::numeric_limits<std::uint32_t>::max();  // the initial namespace knows all users
}
constexpr const char* kAnybody = ", the number of all users that are unknown in this user namespace";

void take_descriptors(msghdr& message, std::vector<Fd>& descriptors) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
}

}  // namespace

Result<std::string> random_socket_name(std::string_view prefix) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string random, random_digits(kNameBytes));
  return fmt::format("{}-{}", prefix, random);
}

Result<Fd> listen_unix(const std::string& name, int backlog) {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Status::from_errno("cannot open a Unix socket", errno);
  fd.keep_from_forks();
  sockaddr_un address;
  const socklen_t length = fill_address(name, address);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd.get(), backlog) != 0) {
    return Status::from_errno("cannot listen on a Unix socket", errno);
  }
  return fd;
}

Result<Fd> connect_unix(const std::string& name, Deadline deadline) {
  // Blocking, so that processes that wait for a place in a full backlog get it in turn; not longer than the deadline.
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Status::from_errno("cannot open a Unix socket", errno);
  fd.keep_from_forks();
  sockaddr_un address;
  const socklen_t length = fill_address(name, address);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline.remaining()).count();
    const auto at_most = std::clamp<std::int64_t>(left, 1, 60'000'000);  // 0 would mean forever
    const timeval limit{static_cast<time_t>(at_most / 1'000'000), static_cast<suseconds_t>(at_most % 1'000'000)};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
    if (errno != EAGAIN && errno != EINTR) {
      const bool is_refused = errno == ECONNREFUSED;
      Status why = Status::from_errno(
          "cannot reach a process of this machine (Unix socket; has it ended, or is it in another network namespace?)",
          errno);
      return is_refused ? Status(ErrorCode::kPeerFailed, why.message()) : why;
    }
    if (deadline.expired())
      return Status(ErrorCode::kTimeout,
                    "a process of this machine did not accept a Unix connection before the deadline");
  }
}

Result<Fd> accept_unix(int listener) {
  Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  fd.keep_from_forks();
  if (fd.valid() || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return fd;
  return Status::from_errno("accept", errno);
}

Result<bool> wait_readable(std::span<const Fd> sockets, int listener, Deadline deadline) {
  std::vector<pollfd> entries{{listener, POLLIN, 0}};
  for (const Fd& socket : sockets) entries.push_back({socket.get(), POLLIN, 0});
  auto ready = poll_until(entries, deadline);
  if (!ready.ok()) return ready.status().with_context("waiting for ranks of this machine to connect");
  return ready;
}

Status check_same_user(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return Status::from_errno("cannot find out whose the other end of a Unix socket is", errno);
  if (credentials.uid == geteuid() && !is_anybody(credentials.uid)) return {};
  return {ErrorCode::kPermission,
          fmt::format("the process at the other end (pid {}) runs as user {}, this one as {}{}", credentials.pid,
                      credentials.uid, geteuid(), credentials.uid == geteuid() ? kAnybody : "")};
}

Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors, Deadline deadline) {
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = space;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    LOCKSTEP_RETURN_IF_ERROR(wait_ready(socket, POLLOUT, deadline, "sending shared memory to a rank"));
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == ETOOMANYREFS && !deadline.expired()) {  // too many descriptors are in flight: some arrive soon
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (errno == EPIPE || errno == ECONNRESET) return closed();
    if (errno != EAGAIN && errno != EINTR) return Status::from_errno("sending shared memory to a rank", errno);
  }
}

Status receive_message(int socket, std::span<std::byte> bytes, std::vector<Fd>* descriptors, Deadline deadline) {
  alignas(cmsghdr) char space[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = descriptors == nullptr ? nullptr : space;
  message.msg_controllen = descriptors == nullptr ? 0 : sizeof(space);
  ssize_t got;
  for (;;) {
    LOCKSTEP_RETURN_IF_ERROR(wait_ready(socket, POLLIN, deadline, "waiting for a rank's shared memory"));
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got >= 0) break;
    // ECONNRESET: the other side has closed without reading all. Its earlier messages come next.
    if (errno != EAGAIN && errno != EINTR && errno != ECONNRESET)
      return Status::from_errno("receiving a rank's shared memory", errno);
  }
  if (descriptors != nullptr) take_descriptors(message, *descriptors);
  if (got == 0) return closed();
  if (static_cast<std::size_t>(got) != bytes.size() || (message.msg_flags & MSG_TRUNC) != 0)
    return {ErrorCode::kCorrupt, fmt::format("expected a message of {} bytes from a rank, got {}", bytes.size(), got)};
  if (descriptors != nullptr && (message.msg_flags & MSG_CTRUNC) != 0)
    return Status::from_errno("cannot take all descriptors of a rank's shared memory", EMFILE);
  return {};
}

}  // namespace lockstep::comm
