#include "store/tcp/heartbeat.h"

#include <linux/tcp.h>  // newer fields than those of the C library's header
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "store/tcp/wire.h"

namespace lockstep::comm {
namespace {

constexpr unsigned kLeastRoom = 16 << 10;

bool may_send(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  const bool knows_room = size >= offsetof(tcp_info, tcpi_snd_wnd) + sizeof info.tcpi_snd_wnd;
  return info.tcpi_unacked == 0 && knows_room && info.tcpi_snd_wnd >= kLeastRoom;
}

}  // namespace

bool send_heartbeat(int fd) {
  if (!may_send(fd)) return true;
  constexpr std::array<char, wire::kLengthBytes> kEmptyFrame{};
  const ssize_t count = send(fd, kEmptyFrame.data(), kEmptyFrame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  return count == static_cast<ssize_t>(kEmptyFrame.size());
}

}  // namespace lockstep::comm
