#include "foreign_descriptors.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

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

using AddressOf = int (*)(int, sockaddr*, socklen_t*);

// The port of this or the other end, in network order; 0: not a TCP socket, or no such end.
in_port_t port_of(int fd, AddressOf address_of) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  int protocol = 0;
  socklen_t bytes = sizeof protocol;
  if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) != 0 || protocol != IPPROTO_TCP) return 0;
  if (address_of(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return reinterpret_cast<const sockaddr_in&>(address).sin_port;
  if (address.ss_family == AF_INET6) return reinterpret_cast<const sockaddr_in6&>(address).sin6_port;
  return 0;
}

bool waits_for_events(int fd) {
  std::error_code ignored;
  const std::string link = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored);
  return link.starts_with("anon_inode:");
}

// Those that a started program would get. They are few, because all of ours have O_CLOEXEC.
std::set<int> inheritable_descriptors() {
  std::set<int> descriptors = own_descriptors();
  std::erase_if(descriptors, [](int fd) {
    const int flags = fcntl(fd, F_GETFD);
    return flags < 0 || (flags & FD_CLOEXEC) != 0;
  });
  return descriptors;
}

void take(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (port_of(fd, &getsockname) != 0) Sockets::of_process().add(fd);
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

ForeignDescriptors::ForeignDescriptors() : before_(inheritable_descriptors()) {}

void ForeignDescriptors::take_new() const {
  for (const int fd : inheritable_descriptors()) {
    if (!before_.contains(fd)) take(fd);
  }
}

void ForeignDescriptors::take_connected(std::span<const int> listeners, std::span<const std::string> addresses) const {
  std::set<in_port_t> ports;
  for (const int listener : listeners) ports.insert(port_of(listener, &getsockname));
  const auto is_ours = [&](int fd) {
    const in_port_t here = port_of(fd, &getsockname);
    if (here == 0) return !before_.contains(fd) && waits_for_events(fd);
    if (ports.contains(here)) return true;
    const in_port_t there = port_of(fd, &getpeername);
    const std::string_view bytes(reinterpret_cast<const char*>(&there), sizeof there);
    return there != 0 && std::any_of(addresses.begin(), addresses.end(), [&](const std::string& address) {
             return address.find(bytes) != std::string::npos;
           });
  };
  for (const int fd : inheritable_descriptors()) {
    if (is_ours(fd)) take(fd);
  }
}

}  // namespace lockstep
