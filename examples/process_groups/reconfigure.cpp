// Ranks that die one after another, and the others go on without a restart. The program starts its own ranks, because a
// launcher would end them all. Run it without arguments.
#include <lockstep/c10d/distributed.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 9;

// Which of the processes kills itself in this step; -1: none.
int victim_of(int step) {
  return step == 3 ? 0 : step == 6 ? 2 : -1;
}

// One rank's program. `number` is that of the process; its rank changes.
void run(int number, const std::string& store) {
  const lockstep::ProcessGroupGuard world(
      "", {.init_method = "file://" + store, .rank = number, .world_size = kRanks, .enable_reconfigure = true});
  bool go_on = true;
  for (int step = 0; step < kSteps;) {
    try {
      if (!go_on) {  // inside the `try`, because the next rank may die at any time
        lockstep::reconfigure();
        // The victim may have died after it had given its part. Then one rank has finished the step, and another has
        // not.
        const torch::Tensor next = torch::tensor({step});
        lockstep::all_reduce(next, {.op = c10d::ReduceOp::MIN});
        step = next.item<int>();
        go_on = true;
      }
      const torch::Tensor sum = torch::ones({1000});
      const lockstep::Work work = lockstep::all_reduce_async(sum);
      if (number == victim_of(step)) std::raise(SIGKILL);
      work->wait();
      if (lockstep::get_rank() == 0) {
        std::cout << "Step " << step << ": the sum over " << lockstep::get_world_size() << " ranks is "
                  << sum[0].item<float>() << std::endl;
      }
      ++step;
    } catch (const std::exception& error) {
      const lockstep::ErrorCode code = lockstep::error_code(error);
      if (code != lockstep::ErrorCode::kPeerFailed && code != lockstep::ErrorCode::kAborted) throw;
      go_on = false;
    }
  }
}

}  // namespace

int main() {
  const std::string folder = std::filesystem::temp_directory_path() / ("reconfigure-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  for (int number = 0; number < kRanks; ++number) {
    const pid_t child = fork();
    if (child < 0) {
      std::perror("fork");
      return 1;
    }
    if (child != 0) continue;
    int failed = 0;
    try {
      run(number, folder + "/store");
    } catch (const std::exception& error) {
      std::cerr << "process " << number << ": " << error.what() << std::endl;
      failed = 1;
    }
    _exit(failed);
  }
  int killed = 0, failed = 0, status = 0;
  while (wait(&status) > 0) {
    killed += WIFSIGNALED(status) ? 1 : 0;
    failed += WIFEXITED(status) && WEXITSTATUS(status) != 0 ? 1 : 0;
  }
  std::filesystem::remove_all(folder);
  std::cout << killed << " ranks were killed, and " << failed << " have failed" << std::endl;
  return failed == 0 ? 0 : 1;
}
