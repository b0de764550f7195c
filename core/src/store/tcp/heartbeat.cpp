#include "store/tcp/heartbeat.h"

#include <linux/tcp.h>  // newer fields than those of the C library's header
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace lockstep::comm {
namespace {

constexpr unsigned kLeastRoom = 16 << 10;

}  // namespace

bool may_send_heartbeat(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  const bool knows_room = size >= offsetof(tcp_info, tcpi_snd_wnd) + sizeof info.tcpi_snd_wnd;
  return info.tcpi_unacked == 0 && knows_room && info.tcpi_snd_wnd >= kLeastRoom;
}

}  // namespace lockstep::comm
