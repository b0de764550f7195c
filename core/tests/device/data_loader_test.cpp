// The loader's way to a device: what arrives there. What is copied for it is in traffic_test.cpp.
#include "lockstep/data/data_loader.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "device/rows.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/data/views.h"
#include "support/device.h"

namespace lockstep::data {
namespace {

using test::Rows;
using test::test_device;

class DeviceDataLoader : public testing::TestWithParam<int> {  // workers
 protected:
  DeviceDataLoader() { test::use_test_device(); }

  static DataLoaderOptions options(torch::Device device) { return test::loader_options(device, GetParam()); }
};

TEST_P(DeviceDataLoader, BringsEachBatchToTheDevice) {
  DataLoader loader(Rows(10), options(test_device(1)));
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::int64_t next = 0;
    for (auto& [data, target] : loader) {
      EXPECT_EQ(data.device(), test_device(1));
      const torch::Tensor expected = torch::arange(next, std::min<std::int64_t>(10, next + 4));
      EXPECT_TRUE(torch::equal(data.select(1, 7).cpu(), expected.to(torch::kFloat)));
      EXPECT_TRUE(torch::equal(target.cpu(), expected));
      next += data.size(0);
    }
    EXPECT_EQ(next, 10);
  }
}

// A batch is freed while the consumer's stream still has work on it.
TEST_P(DeviceDataLoader, BatchesMayBeDroppedBeforeTheirWorkIsDone) {
  std::vector<torch::Tensor> results;
  {
    DataLoader loader(Rows(12), options(test_device(1)));
    for (auto& [data, target] : loader) results.push_back(data.to(torch::kCPU, /*non_blocking=*/true));
  }
  const c10::impl::VirtualGuardImpl guard(test_device(1).type());
  guard.getStream(test_device(1)).synchronize();
  const torch::Tensor all = torch::cat(results);
  EXPECT_TRUE(torch::equal(all.select(1, 0), torch::arange(12, torch::kFloat)));
}

TEST_P(DeviceDataLoader, BringsCollatedBatchesToTheDevice) {
  DataLoader loader(Rows(8), test::with_sums(options(test_device(3))));
  float sum = 0;
  for (auto& [data, target] : loader) sum += data[0].item<float>();
  EXPECT_EQ(sum, 28);
}

TEST_P(DeviceDataLoader, BringsTheTensorsOfAnySampleToTheDevice) {
  using TensorMap = std::map<std::string, torch::Tensor>;
  const auto maps = map_dataset(TensorDataset(torch::arange(6), torch::ones({6, 2})), [](const Example& sample) {
    return TensorMap{{"x", sample.data}, {"y", sample.target}};
  });
  DataLoaderOf loader(
      maps, {.batch_size = 3, .num_workers = GetParam(), .device = test_device(1), .rank = 0, .world_size = 1});
  std::int64_t next = 0;
  for (TensorMap& batch : loader) {
    EXPECT_EQ(batch["y"].device(), test_device(1));
    EXPECT_TRUE(torch::equal(batch["x"].cpu(), torch::arange(next, next + 3)));
    next += 3;
  }
}

TEST_P(DeviceDataLoader, TakesTheCurrentDeviceOfItsMaker) {
  const c10::DeviceGuard current(test_device(2));
  DataLoader loader(Rows(4), options(torch::Device(test::test_device_name())));
  for (auto& [data, target] : loader) EXPECT_EQ(data.device(), test_device(2));
}

TEST_P(DeviceDataLoader, BeginsAnewAfterAnAbandonedEpoch) {
  DataLoader loader(Rows(100), options(test_device(0)));
  for (auto& [data, target] : loader) {
    if (data[0][0].item<float>() >= 4) break;
  }
  auto second = loader.begin();
  EXPECT_EQ((*second).data[0][0].item<float>(), 0);
}

TEST_P(DeviceDataLoader, PinsWithoutADeviceToo) {
  DataLoaderOptions pinned = options(torch::kCPU);
  pinned.pin_memory = true;
  DataLoader loader(Rows(4), pinned);
  for (auto& [data, target] : loader) {
    EXPECT_TRUE(data.is_pinned());
    EXPECT_TRUE(target.is_pinned());
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, DeviceDataLoader, testing::Values(0, 2));

}  // namespace
}  // namespace lockstep::data
