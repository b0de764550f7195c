// A worker that records as a rank of a world would, without one: rank 0 and all but the last rank wait in all_reduce
// #5, the last rank has come out of #4 and calls nothing. Then it waits for a signal.
//
//   recording_worker wait          waits
//   recording_worker kill          the last rank kills itself
//   recording_worker catch         every rank takes SIGUSR1, and says so
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "flight/recorder.h"

namespace {

void say_so(int) {
  constexpr std::string_view kText = "got its signal\n";
  static_cast<void>(!write(STDOUT_FILENO, kText.data(), kText.size()));
}

}  // namespace

int main(int, char** argv) {
  using lockstep::flight::Clock;
  using lockstep::flight::Op;
  const std::string what = argv[1];
  const int rank = std::atoi(std::getenv("RANK"));
  const int world = std::atoi(std::getenv("WORLD_SIZE"));
  if (what == "catch") {
    struct sigaction action {};
    action.sa_handler = say_so;
    sigaction(SIGUSR1, &action, nullptr);
  }
  const auto group = lockstep::flight::add_group("world", "lockstep", rank, world, {});
  for (std::uint64_t number = 1; number <= 4; ++number) {
    group
        .begin({.op = Op::kAllReduce, .type = 6, .waits = true, .number = number, .input = 1024, .output = 1024},
               Clock::now())
        .end(lockstep::flight::Outcome::kDone);
  }
  const bool last = rank == world - 1;
  if (!last)
    group.begin({.op = Op::kAllReduce, .type = 6, .waits = true, .number = 5, .input = 1024, .output = 1024},
                Clock::now());
  std::printf("rank %d has recorded\n", rank);
  std::fflush(stdout);
  if (last && what == "kill") {
    usleep(200'000);
    raise(SIGKILL);
  }
  for (;;) pause();
}
