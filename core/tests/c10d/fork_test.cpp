// Forks of a rank, as a training program sees them. core/tests/engine tests forks and the engine itself.
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

#include "c10d/ranks.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/store/hash_store.h"
#include "support/forked.h"
#include "support/sanitizers.h"

namespace lockstep::test {
namespace {

bool refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error_code(error) == ErrorCode::kUnsupported &&
           std::string(error.what()).find("fork of rank") != std::string::npos;
  }
  return false;
}

// The fork makes a world of its own.
bool works_alone() {
  InitOptions options;
  options.store = std::make_shared<comm::HashStore>();
  options.rank = 0;
  options.world_size = 1;
  init_process_group("", options);
  const torch::Tensor tensor = torch::ones({1000});
  all_reduce(tensor);
  const bool right = torch::equal(tensor, torch::ones({1000}));
  destroy_process_group();
  return right;
}

// Returns 0 if all is as expected.
int look_around(const ProcessGroup& group, const Work& work, const torch::Tensor& shared) {
  if (is_initialized()) return 11;
  if (!refused([] { all_reduce(torch::ones({3})); })) return 12;
  std::vector<at::Tensor> tensors{torch::ones({3})};
  const auto backend = group->getBackend(c10::DeviceType::CPU);
  if (!refused([&] { backend->allreduce(tensors); })) return 13;
  if (!work->isSuccess() && !refused([&] { work->wait(); })) return 16;
  if (shared[5].item<float>() != 4) return 14;
  shared.fill_(9);
  abort_process_group("a fork has no say", group);
  destroy_process_group();
  return works_alone() ? 0 : 15;
}

// Small: for larger tensors LibTorch uses OpenMP's threads, which a fork does not have.
constexpr std::int64_t kElementsOfOneThread = 10'000;

void fork_in(int way) {
  const ProcessGroup group = default_group();
  const torch::Tensor shared = group->getBackend(c10::DeviceType::CPU)->allocateTensor(kElementsOfOneThread).fill_(4);
  const torch::Tensor sum = torch::ones({200'000});
  const Work work = all_reduce_async(sum);
  const auto future = work->getFuture();  // a thread completes it
  const pid_t child = fork();
  if (child == 0) {
    if (way == 0) _exit(look_around(group, work, shared));
    if (way == 1) std::exit(3);
    if (way == 2) return;
    throw std::runtime_error("from a fork");
  }
  constexpr int kEnds[] = {0, 3, 0, 1};
  EXPECT_EQ(end_of(child), kEnds[way]) << "way " << way;
  work->wait();
  future->wait();
  EXPECT_TRUE(torch::equal(sum, torch::full({200'000}, 2.0F)));
  EXPECT_TRUE(torch::equal(shared, torch::full({kElementsOfOneThread}, 4.0F)));
  const torch::Tensor after = torch::ones({10});
  all_reduce(after);
  EXPECT_TRUE(torch::equal(after, torch::full({10}, 2.0F)));
}

// AddressSanitizer's allocator may be locked by a thread that the fork does not have. At exit, libraries free much.
#ifdef __SANITIZE_ADDRESS__
constexpr int kWays = 1;
#else
constexpr int kWays = 4;
#endif

// The fork ends in four ways: at once, by exit(), at the end of main, and by an exception.
TEST(ForkMulti, LeavesTheRankAlone) {
  expect_no_leak_search_in_programs();  // a fork's search waits for threads that the fork does not have
  for (int way = 0; way < kWays; ++way) run_world(2, [way](int) { fork_in(way); });
}

}  // namespace
}  // namespace lockstep::test
