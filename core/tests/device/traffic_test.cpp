// What crosses between the host and devices, counted in copies and bytes: as little as there can be, from page-locked
// memory where somebody would have to wait otherwise. Only the test device counts.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "device/conv_net.h"
#include "device/device_ranks.h"
#include "device/parallel_net.h"
#include "device/rows.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/tensor_dataset.h"
#include "lockstep/data/views.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "support/process.h"
#include "support/scratch_folder.h"
#include "support/test_device.h"

namespace lockstep::test {
namespace {

// What crosses: inputs once, outputs once, through page-locked memory.
TEST(DeviceStagingTrafficMulti, IsEachTensorOnce) {
  run_on_devices(2, [](int rank, torch::Device device) {
    const torch::Tensor tensor = torch::ones({100}, device);
    const Copies none;
    const Copies once{1, 400};
    const auto expect_traffic = [&](Copies to_host, Copies from_host, const char* what) {
      const Traffic found = traffic(device.index());
      EXPECT_EQ(found.to_host, to_host) << what;
      EXPECT_EQ(found.from_host, from_host) << what;
      EXPECT_EQ(found.pinned, (Copies{to_host.count + from_host.count, to_host.bytes + from_host.bytes})) << what;
      EXPECT_EQ(found.from_peer, none) << what;
      reset_traffic();
    };
    reset_traffic();
    all_reduce(tensor);
    expect_traffic(once, once, "all_reduce");
    all_reduce_async(tensor)->wait();
    expect_traffic(once, once, "all_reduce_async");
    broadcast(tensor, 0);
    expect_traffic(rank == 0 ? once : none, rank == 0 ? none : once, "broadcast");
    reduce(tensor, 1);
    expect_traffic(once, rank == 1 ? once : none, "reduce");
    const torch::Tensor all = torch::empty({200}, device);
    all_gather_into_tensor(all, tensor);
    expect_traffic(once, {1, 800}, "all_gather_into_tensor");
    reduce_scatter_tensor(tensor, all);
    expect_traffic({1, 800}, once, "reduce_scatter_tensor");
    all_to_all_single(all, all);
    expect_traffic({1, 800}, {1, 800}, "all_to_all_single");
    if (rank == 0) {
      send(tensor, 1);
    } else {
      recv(tensor, 0);
    }
    expect_traffic(rank == 0 ? once : none, rank == 0 ? none : once, "message");
    const int before = allocated_blocks(device.index());
    all_reduce(tensor);
    EXPECT_EQ(allocated_blocks(device.index()), before);
  });
}

// Each bucket crosses to the host and back once in a pass, and nothing else does except the flags of used parameters.
TEST(DeviceDdpTrafficMulti, IsTheGradientsAndTheBuffers) {
  run_on_devices(2, [](int /*rank*/, torch::Device device) {
    ConvNet net;
    net->to(device);
    DistributedDataParallel<ConvNet> ddp(net, {.device_ids = {device}, .broadcast_buffers = false});
    for (int pass = 0; pass < 3; ++pass) {
      ddp->is_training();
      const torch::Tensor loss = loss_on(net, device);
      reset_traffic();
      loss.backward();
    }
    EXPECT_FALSE(ddp.reducer().comm_time().has_value()) << "the process does not wait for a device";
    const auto buckets = static_cast<std::int64_t>(ddp.reducer().bucket_bytes());
    const auto flags = static_cast<std::int64_t>(4 * net->parameters().size());
    // The flags are on the device since the first pass, and travel as the buckets do.
    EXPECT_EQ(traffic(device.index()).to_host.bytes, buckets + flags);
    EXPECT_EQ(traffic(device.index()).from_host.bytes, buckets + flags);
    for (int other = 0; other < kTestDevices; ++other) {
      if (other != device.index()) {
        EXPECT_EQ(traffic(other), Traffic{}) << other;
      }
    }
  });
}

class DeviceDataParallelTraffic : public testing::TestWithParam<int> {  // devices
 protected:
  DeviceDataParallelTraffic() { use_test_device(); }
};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceDataParallelTraffic, testing::ValuesIn(test_device_counts()));

// Every other device gets the parameters and its rows, and gives back its results and its gradients: each once.
TEST_P(DeviceDataParallelTraffic, IsWhatItMustBe) {
  const int devices = GetParam();
  Net net = make_net(test_device(0));
  DataParallel<Net> parallel(net, {.device_ids = first(devices)});
  const torch::Tensor x = inputs_of(12, 2).to(test_device(0));
  parallel.forward(x).sum().backward();
  reset_traffic();
  const torch::Tensor out = parallel.forward(x);
  out.backward(torch::ones_like(out));
  const std::int64_t rows = 12 / devices;
  std::int64_t parameters = 0;
  for (const torch::Tensor& parameter : net->parameters()) parameters += static_cast<std::int64_t>(parameter.nbytes());
  std::int64_t buffers = 0;
  for (const torch::Tensor& buffer : net->buffers()) buffers += static_cast<std::int64_t>(buffer.nbytes());
  const std::int64_t norm = 2 * 16 * 4;  // parameters without a gradient in this pass
  for (int device = 1; device < devices; ++device) {
    EXPECT_EQ(traffic(device).from_peer.bytes, parameters + buffers + rows * (6 + 3) * 4) << device;
    EXPECT_EQ(traffic(device).to_host, Copies{}) << device;
    EXPECT_EQ(traffic(device).from_host, Copies{}) << device;
  }
  EXPECT_EQ(traffic(0).from_peer.bytes, (devices - 1) * (parameters - norm + rows * 3 * 4));
  EXPECT_EQ(traffic(0).to_host, Copies{});
  EXPECT_EQ(traffic(0).from_host, Copies{});
}

TEST_P(DeviceDataParallelTraffic, LeavesNoMemoryBehind) {
  const int devices = GetParam();
  std::vector<int> before;
  for (int device = 0; device < kTestDevices; ++device) before.push_back(allocated_blocks(device));
  {
    Net net = make_net(test_device(0));
    DataParallel<Net> parallel(net, {.device_ids = first(devices)});
    parallel.forward(torch::ones({8, 6}, test_device(0))).sum().backward();
  }
  for (int device = 0; device < kTestDevices; ++device) {
    // backward() may return while autograd's thread of another device still lets go of its last tensors.
    wait_for([&] { return allocated_blocks(device) == before[device]; });
    EXPECT_EQ(allocated_blocks(device), before[device]) << device;
  }
}

class DeviceStateDictTraffic : public testing::TestWithParam<const char*> {};  // the name of the file
INSTANTIATE_TEST_SUITE_P(Files, DeviceStateDictTraffic, testing::Values("net.safetensors", "net.pt"));

// Each tensor crosses once, and no other device takes part.
TEST_P(DeviceStateDictTraffic, IsEachTensorOnce) {
  use_test_device();
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / GetParam();
  ConvNet net;
  net->to(test_device(1));
  Copies all;
  for (const auto& entry : checkpoint::state_dict(*net)) {
    ++all.count;
    all.bytes += static_cast<std::int64_t>(entry->nbytes());
  }
  reset_traffic();
  checkpoint::write_state_dict(file, checkpoint::state_dict(*net));
  EXPECT_EQ(traffic(1), (Traffic{.to_host = all}));
  reset_traffic();
  checkpoint::read_state_dict(file, test_device(2));
  EXPECT_EQ(traffic(2), (Traffic{.from_host = all}));
  for (const int other : {0, 1, 3}) EXPECT_EQ(traffic(other), Traffic{}) << other;
}

class DeviceLoaderTraffic : public testing::TestWithParam<int> {  // workers
 protected:
  DeviceLoaderTraffic() {
    use_test_device();
    reset_traffic();
  }
  // Every copy to a device is enqueued, from page-locked memory.
  static void expect_copies(int device, const Copies& expected) {
    EXPECT_EQ(traffic(device).from_host, expected);
    EXPECT_EQ(traffic(device).enqueued, expected);
    for (int other = 0; other < kTestDevices; ++other) {
      if (other == device) continue;
      EXPECT_EQ(traffic(other), Traffic{}) << other;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Workers, DeviceLoaderTraffic, testing::Values(0, 2));

TEST_P(DeviceLoaderTraffic, IsEachTensorOnce) {
  const int before = allocated_blocks(1);
  {
    data::DataLoader loader(Rows(10), loader_options(test_device(1), GetParam()));
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : loader) EXPECT_TRUE(batch.data.defined());
    }
  }
  expect_copies(1, {2 * 2 * 3, 2 * 10 * (64 + 8)});  // in each epoch two tensors of three batches
  EXPECT_EQ(allocated_blocks(1), before);
}

TEST_P(DeviceLoaderTraffic, OfCollatedBatchesIsPinnedFirst) {
  data::DataLoader loader(Rows(8), with_sums(loader_options(test_device(3), GetParam())));
  for (auto& batch : loader) EXPECT_TRUE(batch.data.defined());
  expect_copies(3, {2, 128});
}

TEST_P(DeviceLoaderTraffic, OfAnySampleIsItsTensors) {
  using TensorMap = std::map<std::string, torch::Tensor>;
  const auto maps =
      data::map_dataset(data::TensorDataset(torch::arange(6), torch::ones({6, 2})), [](const data::Example& sample) {
        return TensorMap{{"x", sample.data}, {"y", sample.target}};
      });
  data::DataLoaderOf loader(
      maps, {.batch_size = 3, .num_workers = GetParam(), .device = test_device(1), .rank = 0, .world_size = 1});
  for (TensorMap& batch : loader) EXPECT_EQ(batch.size(), 2U);
  expect_copies(1, {4, 6 * (8 + 8)});
}

TEST_P(DeviceLoaderTraffic, IsNoneWithoutADevice) {
  data::DataLoaderOptions pinned = loader_options(torch::kCPU, GetParam());
  pinned.pin_memory = true;
  data::DataLoader loader(Rows(4), pinned);
  for (auto& batch : loader) EXPECT_TRUE(batch.data.is_pinned());
  expect_copies(0, {});
}

TEST_P(DeviceLoaderTraffic, OfAnAbandonedEpochLeavesNothing) {
  const int before = allocated_blocks(0);
  {
    data::DataLoader loader(Rows(100), loader_options(test_device(0), GetParam()));
    for (auto& batch : loader) {
      if (batch.data[0][0].item<float>() >= 4) break;
    }
  }
  EXPECT_EQ(allocated_blocks(0), before);
}

}  // namespace
}  // namespace lockstep::test
