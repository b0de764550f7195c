#include "base/foreign_descriptors.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"

namespace lockstep {
namespace {

// A socket of UCX. UCX may have closed it since: then the number belongs to another file, with another inode.
struct Taken {
  int fd;
  std::uint64_t inode;
};

// statx(), because TSan takes fstat() of a descriptor that another thread has just made for a race. The kernel's table
// needs no order between threads.
std::uint64_t inode_of(int fd) {
  struct statx info {};
  return statx(fd, "", AT_EMPTY_PATH, STATX_INO, &info) == 0 ? info.stx_ino : 0;
}

class Sockets {
 public:
  static Sockets& of_process() {
    static auto& sockets = *new Sockets;
    return sockets;
  }

  void add(int fd) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::erase_if(all_, [](const Taken& taken) { return inode_of(taken.fd) != taken.inode; });
    const bool known = std::any_of(all_.begin(), all_.end(), [fd](const Taken& taken) { return taken.fd == fd; });
    if (!known) all_.push_back({fd, inode_of(fd)});
  }

 private:
  Sockets() : handler_(&Sockets::let_go, this) { hold_during_forks(mutex_.native()); }

  // The fork holds the mutex.
  static void let_go(void* sockets) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const Taken& taken : static_cast<const Sockets*>(sockets)->all_) {
      if (nothing >= 0 && inode_of(taken.fd) == taken.inode) dup3(nothing, taken.fd, O_CLOEXEC);
    }
    if (nothing >= 0) close(nothing);
  }

  Mutex mutex_;
  std::vector<Taken> all_ LOCKSTEP_GUARDED_BY(mutex_);
  ForkHandler handler_;
};

// The port, in network order; 0: not a TCP socket.
in_port_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  int protocol = 0;
  socklen_t bytes = sizeof protocol;
  if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) != 0 || protocol != IPPROTO_TCP) return 0;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_port;
  if (address.ss_family == AF_INET6) return reinterpret_cast<const sockaddr_in6&>(address).sin6_port;
  return 0;
}

bool listens(int fd) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

bool is_pipe(int fd) {
  struct statx info {};
  return statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &info) == 0 && S_ISFIFO(info.stx_mode);
}

bool is_inheritable(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

// The descriptors that this one watches; none if it is no epoll descriptor.
std::vector<int> watched_by(int fd) {
  std::vector<int> watched;
  std::ifstream lines("/proc/self/fdinfo/" + std::to_string(fd));
  for (std::string line; std::getline(lines, line);) {
    int one = -1;
    unsigned long inode = 0;
    const int fields = std::sscanf(line.c_str(), "tfd: %d events: %*x data: %*x pos:%*d ino:%lx", &one, &inode);
    // An entry outlives its descriptor if a fork has a copy: then the number may belong to another file by now.
    if (fields == 1 || (fields == 2 && inode == inode_of(one))) watched.push_back(one);
  }
  return watched;
}

// `fd`, and what it and they watch.
std::set<int> all_under(int fd) {
  std::set<int> found{fd};
  std::vector<int> left{fd};
  while (!left.empty()) {
    const int next = left.back();
    left.pop_back();
    for (const int watched : watched_by(next)) {
      if (found.insert(watched).second) left.push_back(watched);
    }
  }
  return found;
}

// What the descriptor watches for which `is_ours` is true of something that it watches, and that descriptor: UCX's own
// thread waits there, for all workers.
template <typename IsOurs>
std::vector<int> watched_by_thread(const IsOurs& is_ours) {
  static std::atomic<int> last{-1};  // where they were before, as the process may have thousands of descriptors
  const auto what_it_watches = [&](int fd) {
    std::vector<int> watched = watched_by(fd);
    if (std::any_of(watched.begin(), watched.end(), is_ours)) {
      watched.push_back(fd);
      last = fd;
    } else {
      watched.clear();
    }
    return watched;
  };
  if (auto watched = what_it_watches(last); !watched.empty()) return watched;
  for (const int fd : own_descriptors()) {
    if (auto watched = what_it_watches(fd); !watched.empty()) return watched;
  }
  return {};
}

// Whether the other end of this connection is out of reach: its kernel has answered nothing for a while, although this
// kernel has asked several times. The kernel of a stopped process answers. So the time since the last answer alone is
// no proof: this kernel asks at growing distances, each at most twice as long as the one before.
bool is_cut(int fd) {
  constexpr std::uint32_t kSilentMs = 4000;
  constexpr std::uint32_t kAnswerMs = 300;  // an answer to the last try may be on its way
  constexpr int kProbes = 3;                // of a full window, or where nothing leaves this machine
  constexpr int kRetransmits = 4;           // they usually take 3 s
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_state != TCP_ESTABLISHED) return false;
  const std::uint32_t answered = info.tcpi_last_ack_recv;  // so long ago, in milliseconds
  const std::uint32_t sent = info.tcpi_last_data_sent;
  if (answered < kSilentMs) return false;
  if (info.tcpi_probes >= kProbes) return true;  // an answer sets this number to 0
  if (info.tcpi_unacked == 0 || info.tcpi_retransmits < kRetransmits) return false;
  const std::uint32_t distance = info.tcpi_rto / 1000;              // from the last try to the next
  if (sent >= std::max(kSilentMs, distance / 5 * 6)) return true;   // no try can leave this machine
  return sent >= kAnswerMs && answered >= sent + distance / 5 * 3;  // the last two tries were in vain
}

void take(int fd) {
  if (!is_inheritable(fd)) return;
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (port_of(fd) != 0) Sockets::of_process().add(fd);
}

void take_pipe(int end) {
  const std::uint64_t inode = inode_of(end);
  for (const int fd : own_descriptors()) {
    if (is_pipe(fd) && inode_of(fd) == inode) take(fd);
  }
}

}  // namespace

std::set<int> own_descriptors() {
  std::set<int> descriptors;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    descriptors.insert(std::atoi(entry.path().filename().c_str()));
  }
  // The folder's own descriptor was among them. Its number is free again, and the next to be given out.
  std::erase_if(descriptors, [](int fd) { return fcntl(fd, F_GETFD) < 0; });
  return descriptors;
}

std::vector<int> take_worker_descriptors(int event_fd, std::span<const int> known, std::string_view address) {
  const auto is_listener = [&](int fd) {
    const bool possible = known.empty() || std::find(known.begin(), known.end(), fd) != known.end();
    const in_port_t port = possible && is_inheritable(fd) && listens(fd) ? port_of(fd) : 0;
    const std::string_view bytes(reinterpret_cast<const char*>(&port), sizeof port);
    return port != 0 && address.find(bytes) != std::string_view::npos;
  };
  std::vector<int> listeners;
  for (const int fd : watched_by_thread(is_listener)) {
    if (is_listener(fd)) listeners.push_back(fd);
    if (is_inheritable(fd) && is_pipe(fd)) take_pipe(fd);
    take(fd);
  }
  take_worker_connections(event_fd);
  return listeners;
}

void take_worker_connections(int event_fd) {
  for (const int fd : all_under(event_fd)) take(fd);
}

void shut_down_cut_connections(int event_fd) {
  for (const int fd : all_under(event_fd)) {
    if (is_cut(fd)) shutdown(fd, SHUT_RDWR);
  }
}

}  // namespace lockstep
