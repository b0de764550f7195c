#include "comm/transport/port_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"

namespace lockstep::comm {
namespace {

namespace fs = std::filesystem;

constexpr auto kSweepLimit = std::chrono::seconds(1);

std::set<int> own_descriptors() {
  std::set<int> descriptors;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", ignored)) {
    descriptors.insert(std::atoi(entry.path().filename().c_str()));
  }
  return descriptors;
}

bool listens(int fd) {
  int answer = 0;
  socklen_t size = sizeof answer;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &answer, &size) == 0 && answer != 0;
}

// False: no TCP socket with an address.
bool local_address(int fd, sockaddr_storage& address) {
  int protocol = 0;
  socklen_t size = sizeof protocol;
  if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0 || protocol != IPPROTO_TCP) return false;
  size = sizeof address;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
}

// In network order; 0: no TCP socket that listens.
std::uint16_t listening_port(int fd) {
  sockaddr_storage address{};
  if (!listens(fd) || !local_address(fd, address)) return 0;
  if (address.ss_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_port;
  return reinterpret_cast<const sockaddr_in6&>(address).sin6_port;
}

// As in /proc/net/tcp, "0100007F:1F90"; empty: no TCP socket.
std::string place_of(int fd) {
  sockaddr_storage address{};
  if (!local_address(fd, address)) return {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return fmt::format("{:08X}:{:04X}", v4.sin_addr.s_addr, ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  std::array<std::uint32_t, 4> words;
  std::memcpy(words.data(), &v6.sin6_addr, sizeof words);
  return fmt::format("{:08X}:{:04X}", fmt::join(words, ""), ntohs(v6.sin6_port));
}

// Whether connections to `place` are the listener's: it has that address, or listens on all.
bool serves(const std::string& listener, const std::string& place) {
  const auto port = listener.find(':');
  if (listener.find_first_not_of('0') != port) return listener == place;
  return place.size() > 5 && place.substr(place.size() - 5) == listener.substr(port);
}

// Offsets in the IP headers, which lie before what a filter of a TCP socket sees.
constexpr auto kNetwork = static_cast<std::uint32_t>(SKF_NET_OFF);
constexpr std::uint32_t kSource4 = kNetwork + 12;
constexpr std::uint32_t kSource6 = kNetwork + 8;

// A classic BPF program: what it returns is how many bytes of the segment pass.
class SourceFilter {
 public:
  Status add(const std::string& address) {
    std::array<std::uint32_t, 4> words{};
    if (inet_pton(AF_INET, address.c_str(), words.data()) == 1) {
      match_word(ipv4_, ntohl(words[0]));
    } else if (inet_pton(AF_INET6, address.c_str(), words.data()) == 1) {
      match_ipv6(words);
    } else {
      return {ErrorCode::kInvalidArgument, fmt::format("expected an IP address, found '{}'", address)};
    }
    return {};
  }

  void add_loopback() {
    ipv4_.insert(ipv4_.begin(), {
                                    BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xff000000),
                                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x7f000000, 0, 1),  // 127.0.0.0/8
                                    kPass,
                                    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSource4),
                                });
    match_ipv6({0, 0, 0, htonl(1)});
  }

  std::vector<sock_filter> program() const {
    std::vector<sock_filter> all{
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kNetwork),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 6, 0, 2),
        BPF_STMT(BPF_JMP | BPF_JA, 0),  // to the part for IPv6, below
        BPF_STMT(BPF_JMP | BPF_JA, 1),
        kDrop,
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSource4),
    };
    all.insert(all.end(), ipv4_.begin(), ipv4_.end());
    all.push_back(kDrop);
    constexpr std::size_t kJump = 4;
    all[kJump].k = static_cast<std::uint32_t>(all.size() - kJump - 1);
    all.insert(all.end(), ipv6_.begin(), ipv6_.end());
    all.push_back(kDrop);
    return all;
  }

 private:
  static constexpr sock_filter kDrop = BPF_STMT(BPF_RET | BPF_K, 0);
  static constexpr sock_filter kPass = BPF_STMT(BPF_RET | BPF_K, std::numeric_limits<std::uint32_t>::max());

  static void match_word(std::vector<sock_filter>& part, std::uint32_t word) {
    part.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word, 0, 1));
    part.push_back(kPass);
  }
  // Each word that differs leads to the next address.
  void match_ipv6(const std::array<std::uint32_t, 4>& words) {
    for (std::uint8_t i = 0; i < 4; ++i) {
      const auto rest = static_cast<std::uint8_t>(2 * (3 - i) + 1);
      ipv6_.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSource6 + 4U * i));
      ipv6_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[i]), 0, rest));
    }
    ipv6_.push_back(kPass);
  }

  std::vector<sock_filter> ipv4_;
  std::vector<sock_filter> ipv6_;
};

Status attach_filter(int socket, const Admitted& admitted) {
  SourceFilter filter;
  if (admitted.loopback) filter.add_loopback();
  for (const std::string& address : admitted.addresses) LOCKSTEP_RETURN_IF_ERROR(filter.add(address));
  std::vector<sock_filter> program = filter.program();
  sock_fprog handle{static_cast<unsigned short>(program.size()), program.data()};
  if (program.size() > BPF_MAXINSNS || setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &handle, sizeof handle) != 0) {
    return {ErrorCode::kUnavailable,
            fmt::format("cannot close a port to strangers: a filter for {} addresses: {}", admitted.addresses.size(),
                        program.size() > BPF_MAXINSNS ? "too many" : std::strerror(errno))};
  }
  return {};
}

// Those that the owner of the listener has not accepted yet.
void refuse_waiting(int listener) {
  pollfd entry{listener, POLLIN, 0};
  const bool blocks = (fcntl(listener, F_GETFL) & O_NONBLOCK) == 0;
  for (;;) {
    if (blocks && poll(&entry, 1, 0) <= 0) return;
    const Fd stranger(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!stranger.valid()) return;
  }
}

// The owner of the descriptor reads the end of the stream, and not what was sent before.
void end_connection(int fd) {
  shutdown(fd, SHUT_RDWR);
  std::array<char, 4096> ignored;
  while (recv(fd, ignored.data(), ignored.size(), MSG_DONTWAIT) > 0) {
  }
}

// Whether anything is connected to the listener, by the kernel's own table.
bool has_connections(const std::string& listener) {
  for (const char* name : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::ifstream table(name);
    for (std::string line; std::getline(table, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      if ((state == "01" || state == "08") && serves(listener, local)) return true;  // established, half closed
    }
  }
  return false;
}

}  // namespace

NewListeners::NewListeners() : before_(own_descriptors()) {}

std::vector<int> NewListeners::found(std::string_view address) const {
  std::vector<int> listeners;
  for (const int fd : own_descriptors()) {
    const std::uint16_t port = before_.contains(fd) ? 0 : listening_port(fd);
    if (port == 0) continue;
    if (address.find(std::string_view(reinterpret_cast<const char*>(&port), sizeof port)) != std::string_view::npos)
      listeners.push_back(fd);
  }
  return listeners;
}

Status close_to_strangers(int listener, const Admitted& admitted) {
  LOCKSTEP_RETURN_IF_ERROR(attach_filter(listener, admitted));
  // The kernel may be letting one in on another core that has not seen the filter: waits until it is through.
  (void)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
  const std::string place = place_of(listener);
  const Deadline deadline = Deadline::after(kSweepLimit);
  do {
    refuse_waiting(listener);
    for (const int fd : own_descriptors()) {
      if (fd != listener && serves(place, place_of(fd))) end_connection(fd);
    }
    if (!has_connections(place)) return {};
    // Accepted by another thread just now.
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  } while (!deadline.expired());
  return {ErrorCode::kUnavailable,
          "a stranger had reached a port before it could be closed to strangers, and its connection does not end"};
}

}  // namespace lockstep::comm
