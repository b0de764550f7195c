// The loader's way to a device: one copy of each tensor of a batch, from page-locked memory, that blocks nobody.
#include "lockstep/data/data_loader.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "lockstep/data/errors.h"
#include "lockstep/data/tensor_dataset.h"
#include "support/test_device.h"

namespace lockstep::data {
namespace {

using test::Copies;
using test::test_device;
using test::Traffic;

// Sample i is a row of i, and the number i.
class Rows : public Dataset {
 public:
  explicit Rows(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override {
    return {torch::full({16}, static_cast<float>(index)), torch::tensor(index)};
  }

 private:
  std::int64_t size_;
};

class DeviceDataLoader : public testing::TestWithParam<int> {  // workers
 protected:
  DeviceDataLoader() {
    test::use_test_device();
    test::reset_traffic();
  }

  static DataLoaderOptions options(torch::Device device) {
    return {.batch_size = 4, .num_workers = GetParam(), .device = device, .rank = 0, .world_size = 1};
  }
};

TEST_P(DeviceDataLoader, CopiesEachTensorOnceFromPageLockedMemory) {
  const int before = test::allocated_blocks(1);
  {
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
  const Copies expected{2 * 2 * 3, 2 * 10 * (64 + 8)};  // in each epoch two tensors of three batches
  EXPECT_EQ(test::traffic(1).from_host, expected);
  EXPECT_EQ(test::traffic(1).enqueued, expected);
  for (const int other : {0, 2, 3}) EXPECT_EQ(test::traffic(other), Traffic{});
  EXPECT_EQ(test::allocated_blocks(1), before);
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

TEST_P(DeviceDataLoader, CollatedBatchesArePinnedFirst) {
  DataLoaderOptions with_collate = options(test_device(3));
  with_collate.collate = [](std::vector<Example> samples) {
    std::vector<torch::Tensor> rows;
    for (const Example& sample : samples) rows.push_back(sample.data);
    return Example{torch::stack(rows).sum(0), torch::Tensor()};
  };
  DataLoader loader(Rows(8), with_collate);
  float sum = 0;
  for (auto& [data, target] : loader) sum += data[0].item<float>();
  EXPECT_EQ(sum, 28);
  EXPECT_EQ(test::traffic(3).from_host, (Copies{2, 128}));
  EXPECT_EQ(test::traffic(3).enqueued, (Copies{2, 128}));
}

TEST_P(DeviceDataLoader, CopiesTheTensorsOfAnySample) {
  const TensorMapDataset maps({{"x", torch::arange(6)}, {"y", torch::ones({6, 2})}});
  DataLoaderOf loader(
      maps, {.batch_size = 3, .num_workers = GetParam(), .device = test_device(1), .rank = 0, .world_size = 1});
  std::int64_t next = 0;
  for (TensorMap& batch : loader) {
    EXPECT_EQ(batch["y"].device(), test_device(1));
    EXPECT_TRUE(torch::equal(batch["x"].cpu(), torch::arange(next, next + 3)));
    next += 3;
  }
  EXPECT_EQ(test::traffic(1).from_host, (Copies{4, 6 * (8 + 8)}));
}

TEST_P(DeviceDataLoader, TakesTheCurrentDeviceOfItsMaker) {
  const c10::DeviceGuard current(test_device(2));
  DataLoader loader(Rows(4), options(torch::Device("test")));
  for (auto& [data, target] : loader) EXPECT_EQ(data.device(), test_device(2));
}

TEST_P(DeviceDataLoader, AnAbandonedEpochLeavesNothing) {
  const int before = test::allocated_blocks(0);
  {
    DataLoader loader(Rows(100), options(test_device(0)));
    for (auto& [data, target] : loader) {
      if (data[0][0].item<float>() >= 4) break;
    }
    auto second = loader.begin();
    EXPECT_EQ((*second).data[0][0].item<float>(), 0);
  }
  EXPECT_EQ(test::allocated_blocks(0), before);
}

TEST_P(DeviceDataLoader, PinsWithoutADeviceToo) {
  DataLoaderOptions pinned = options(torch::kCPU);
  pinned.pin_memory = true;
  DataLoader loader(Rows(4), pinned);
  for (auto& [data, target] : loader) {
    EXPECT_TRUE(data.is_pinned());
    EXPECT_TRUE(target.is_pinned());
  }
  EXPECT_EQ(test::traffic(0), Traffic{});
}

TEST_P(DeviceDataLoader, RefusesADeviceThatIsNotThere) {
  EXPECT_THROW(DataLoader(Rows(4), options(test_device(4))), DataError);
}

INSTANTIATE_TEST_SUITE_P(Workers, DeviceDataLoader, testing::Values(0, 2));

}  // namespace
}  // namespace lockstep::data
