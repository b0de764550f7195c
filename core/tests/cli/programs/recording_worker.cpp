// A worker that records as a rank of a world would, without one: rank 0 and all but the last rank wait in all_reduce
// #5, the last rank has come out of #4 and calls nothing. Then it waits for a signal.
//
//   recording_worker wait          waits
//   recording_worker kill          the last rank kills itself
//   recording_worker catch         every rank takes SIGUSR1, and says so
//   recording_worker steps N       makes N steps of 50 ms: an all_reduce of 1024 float32 that all ranks call at once
//   recording_worker slow N        the same, but the last rank calls it 20 ms after the others
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "flight/recorder.h"

namespace {

void say_so(int) {
  constexpr std::string_view kText = "got its signal\n";
  static_cast<void>(!write(STDOUT_FILENO, kText.data(), kText.size()));
}

// The clock tells all ranks when a step begins, and its number.
void make_steps(const lockstep::flight::GroupRecord& group, int steps, bool is_late) {
  using lockstep::flight::Clock;
  constexpr std::chrono::milliseconds kStep{50};
  constexpr std::chrono::milliseconds kLate{20};
  const auto first = Clock::now().time_since_epoch() / kStep + 1;
  for (auto number = first; number < first + steps; ++number) {
    const Clock::time_point begin(number * kStep);
    std::this_thread::sleep_until(is_late ? begin + kLate : begin);
    const auto ticket = group.begin({.op = lockstep::flight::Op::kAllReduce,
                                     .type = 6,
                                     .waits = true,
                                     .number = static_cast<std::uint64_t>(number),
                                     .input = 1024,
                                     .output = 1024},
                                    Clock::now());
    std::this_thread::sleep_until(begin + kLate + std::chrono::milliseconds(1));
    ticket.end(lockstep::flight::Outcome::kDone);
    lockstep::flight::end_step();
  }
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
  if (what == "steps" || what == "slow") {
    make_steps(group, std::atoi(argv[2]), what == "slow" && rank == world - 1);
    return 0;
  }
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
