// A rank is killed in the middle of NCCL's collectives: the others get an error, and their processes still work.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <iterator>

#include "device/device_ranks.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::test {
namespace {

constexpr std::chrono::seconds kGroupLimit{15};

// Until an error comes: NCCL's work notices a lost rank itself, or at the group's timeout.
std::string error_of_all_reduces(torch::Device device) {
  const torch::Tensor tensor = torch::ones({1 << 22}, device);
  const auto end = std::chrono::steady_clock::now() + 4 * kGroupLimit;
  try {
    while (std::chrono::steady_clock::now() < end) all_reduce(tensor.fill_(1));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// What a survivor can do once it has left the group.
std::string work_alone(torch::Device device) {
  init_process_group(test_device_backends().back(),
                     {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()});
  const torch::Tensor tensor = torch::ones({1000}, device);
  all_reduce(tensor);
  const auto sum = tensor.sum().item<float>();
  destroy_process_group();
  return sum == 1000 ? "works" : "wrong sum";
}

void survive(torch::Device device, const std::filesystem::path& report) {
  const std::string error = error_of_all_reduces(device);
  abort_process_group("a rank was lost");
  destroy_process_group();
  std::string after;
  try {
    after = work_alone(device);
  } catch (const std::exception& failed) {
    after = failed.what();
  }
  std::ofstream(report) << error << "\nafterwards: " << after;
}

TEST(KilledRank, SurvivorsGetAnErrorAndWorkOn) {
  const auto start = std::chrono::steady_clock::now();
  run_processes_with_a_victim(
      3, /*victim=*/1,
      [](int rank, const std::filesystem::path& report) {
        ::setenv("TORCH_NCCL_BLOCKING_WAIT", "1", /*replace=*/1);  // errors come to the caller, not to a watchdog
        use_test_device();
        prepare_rank(rank);
        init_process_group(test_device_backends().back(), {.timeout = kGroupLimit});
        const torch::Device device = test_device(rank);
        if (rank != 1) return survive(device, report);
        const torch::Tensor tensor = torch::ones({1 << 22}, device);
        for (int i = 0; i < 10; ++i) all_reduce(tensor);
        const Work work = all_reduce_async(tensor);
        raise(SIGKILL);
      },
      [](const std::filesystem::path& report) {
        std::ifstream file(report);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        EXPECT_EQ(text.find("no error"), std::string::npos) << text;
        EXPECT_NE(text.find("\nafterwards: works"), std::string::npos) << text;
      });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(90));
}

}  // namespace
}  // namespace lockstep::test
