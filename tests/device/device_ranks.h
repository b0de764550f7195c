// Worlds of processes whose ranks compute on the test device, each on its own.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "lockstep/c10d/distributed.h"
#include "support/process_ranks.h"
#include "support/test_device.h"

namespace lockstep::test {

// Runs fn(rank, device) in `world` processes, between init_process_group and destroy_process_group.
inline void run_on_devices(int world, const std::function<void(int rank, torch::Device device)>& fn,
                           const std::string& backend = "lockstep") {
  run_processes(world, [&](int rank) {
    torch::set_num_threads(1);
    use_test_device();
    const ProcessGroupGuard group(backend);
    fn(rank, test_device(rank % kTestDevices));
  });
}

inline void expect_on_device(const torch::Tensor& actual, torch::Device device, const torch::Tensor& expected,
                             const std::string& what) {
  EXPECT_EQ(actual.device(), device) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::equal(actual.cpu(), expected.cpu())) << what;
}

}  // namespace lockstep::test
