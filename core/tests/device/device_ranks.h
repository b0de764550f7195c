// Worlds of processes whose ranks compute on the test device, each on its own where there are enough of them.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>

#include "lockstep/c10d/distributed.h"
#include "support/device.h"
#include "support/process_ranks.h"

namespace lockstep::test {

using OnDevice = std::function<void(int rank, torch::Device device)>;

// Runs fn(rank, device) in `world` processes, between init_process_group and destroy_process_group.
inline void run_on_devices(int world, const OnDevice& fn, const std::string& backend) {
  const testing::ScopedTrace trace(__FILE__, __LINE__, "backend " + backend);
  run_processes(world, [&](int rank) {
    torch::set_num_threads(1);
    use_test_device();
    prepare_rank(rank);
    const ProcessGroupGuard group(backend);
    fn(rank, test_device(rank % kTestDevices));
  });
}

// With each backend that serves the device.
inline void run_on_devices(int world, const OnDevice& fn) {
  for (const std::string& backend : test_device_backends()) run_on_devices(world, fn, backend);
}

inline void expect_on_device(const torch::Tensor& actual, torch::Device device, const torch::Tensor& expected,
                             const std::string& what) {
  EXPECT_EQ(actual.device(), device) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(same_result(actual.cpu(), expected.cpu())) << what;
}

}  // namespace lockstep::test
