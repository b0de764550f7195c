// Rank 0 sends tasks and takes results from any rank that is ready. Run with 2 processes or more.
#include <lockstep/c10d/distributed.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>

namespace {

constexpr int kTasks = 10;
constexpr int kTask = 1;  // tags: a receive matches only messages with its tag
constexpr int kResult = 2;

void lead(int workers) {
  const torch::Tensor task = torch::zeros({1}, torch::kLong);
  const torch::Tensor result = torch::zeros({1}, torch::kLong);
  std::int64_t sum = 0;
  int sent = 0;
  const auto send_next = [&](int worker) {
    // -1: no more tasks.
    lockstep::send(task.fill_(sent < kTasks ? sent : -1), worker, {.tag = kTask});
    ++sent;
  };
  for (int worker = 1; worker <= workers; ++worker) send_next(worker);
  for (int done = 0; done < kTasks; ++done) {
    const int worker = lockstep::recv(result, lockstep::kAnySource, {.tag = kResult});
    sum += result.item<std::int64_t>();
    send_next(worker);
  }
  std::cout << "Rank 0 has the sum of squares " << sum << std::endl;
}

void work() {
  const torch::Tensor task = torch::zeros({1}, torch::kLong);
  for (;;) {
    lockstep::recv(task, /*src=*/0, {.tag = kTask});
    if (task.item<std::int64_t>() < 0) return;
    lockstep::send(task * task, /*dst=*/0, {.tag = kResult});
  }
}

}  // namespace

int main() {
  const lockstep::ProcessGroupGuard world;
  if (world.rank() == 0) {
    lead(std::min(world.world_size() - 1, kTasks));
  } else if (world.rank() <= kTasks) {
    work();
  }
}
