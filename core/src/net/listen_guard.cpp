#include "net/listen_guard.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <future>
#include <string>
#include <system_error>
#include <thread>

#include "lockstep/base/fd.h"

namespace lockstep::comm {
namespace {

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
