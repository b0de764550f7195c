#include "net/port_guard.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <future>
#include <limits>
#include <string>
#include <system_error>
#include <thread>

#include "lockstep/base/fd.h"

namespace lockstep::comm {
namespace {

// Offsets in the IP headers, which lie before what a filter of a TCP socket sees.
constexpr auto kNetwork = static_cast<std::uint32_t>(SKF_NET_OFF);
constexpr std::uint32_t kSource4 = kNetwork + 12;
constexpr std::uint32_t kSource6 = kNetwork + 8;

// A classic BPF program. It returns how many bytes of a segment may pass.
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
  // If a word differs, the program jumps to the next address.
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

// From now on, calls of listen in this thread wait for an answer at the descriptor. Invalid: the kernel refuses this.
Fd watch_this_thread() {
  std::array<sock_filter, 4> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_listen, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog handle{program.size(), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return {};
  return Fd(static_cast<int>(
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &handle)));  // close-on-exec
}

// Answers one call of listen: it continues once `prepare` has returned.
void answer(int watch, const std::function<void(int socket)>& prepare) {
  // Newer kernels may write more than this header knows of.
  alignas(seccomp_notif) std::array<std::byte, 1024> request{};
  alignas(seccomp_notif_resp) std::array<std::byte, 1024> reply{};
  auto& asked = *reinterpret_cast<seccomp_notif*>(request.data());
  auto& answered = *reinterpret_cast<seccomp_notif_resp*>(reply.data());
  if (ioctl(watch, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) return;
  prepare(static_cast<int>(asked.data.args[0]));
  answered.id = asked.id;
  answered.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  (void)ioctl(watch, SECCOMP_IOCTL_NOTIF_SEND, &answered);
}

}  // namespace

Status close_to_strangers(int socket, const Admitted& admitted) {
  SourceFilter filter;
  if (admitted.loopback) filter.add_loopback();
  for (const std::string& address : admitted.addresses) LOCKSTEP_RETURN_IF_ERROR(filter.add(address));
  std::vector<sock_filter> program = filter.program();
  sock_fprog handle{static_cast<unsigned short>(program.size()), program.data()};
  if (program.size() <= BPF_MAXINSNS && setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &handle, sizeof handle) == 0)
    return {};
  const std::string why = program.size() > BPF_MAXINSNS ? "too many" : std::strerror(errno);
  const int unused = 0;
  (void)setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
  return {ErrorCode::kUnavailable, fmt::format("cannot close a port to strangers: a filter for {} addresses: {}",
                                               admitted.addresses.size(), why)};
}

Result<bool> run_watching_listen(const std::function<void()>& work, const std::function<void(int socket)>& prepare) {
  const Fd done(eventfd(0, EFD_CLOEXEC));
  if (!done.valid()) return Status::from_errno("eventfd", errno);
  std::promise<Fd> watching;
  const auto work_watched = [&] {
    watching.set_value(watch_this_thread());
    work();
    (void)eventfd_write(done.get(), 1);
  };
  std::thread worker;
  try {
    worker = std::thread(work_watched);
  } catch (const std::system_error& error) {
    return Status(ErrorCode::kUnavailable, std::string("cannot start a thread: ") + error.what());
  }
  Fd watch = watching.get_future().get();
  const bool watched = watch.valid();
  std::array<pollfd, 2> entries{{{done.get(), POLLIN, 0}, {watch.get(), POLLIN, 0}}};
  while (entries[0].revents == 0) {
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) break;
    if ((entries[1].revents & POLLIN) != 0) answer(watch.get(), prepare);
  }
  watch.reset();  // before the join: a later call of listen then fails, instead of waiting forever
  worker.join();
  return watched;
}

}  // namespace lockstep::comm
