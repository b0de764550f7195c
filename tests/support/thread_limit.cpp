#include "support/thread_limit.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace lockstep::test {

void refuse_threads(int more) {
  std::thread([] {}).join();  // with the first one TSan may start a thread of its own
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  const auto now = static_cast<rlim_t>(std::distance(begin(tasks), end(tasks)));
  const rlimit limit{now + static_cast<rlim_t>(more), now + static_cast<rlim_t>(more)};
  // The limit counts all threads of a user on the machine, and does not apply to root.
  const auto user = static_cast<uid_t>(1'000'000'000 + ::getpid());
  if (::setrlimit(RLIMIT_NPROC, &limit) != 0 || ::setresuid(user, user, user) != 0) {
    throw std::runtime_error(fmt::format("cannot limit this process's threads: {}", std::strerror(errno)));
  }
  ::prctl(PR_SET_DUMPABLE, 1);  // otherwise /proc/self belongs to root
  ::alarm(90);
}

}  // namespace lockstep::test
