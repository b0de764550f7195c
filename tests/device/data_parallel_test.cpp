// DataParallel on devices: who gets which rows, the result of one device, what is copied, errors with their device.
#include "lockstep/nn/data_parallel.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

#include "nn/error_texts.h"
#include "support/process.h"
#include "support/test_device.h"

namespace lockstep::test {
namespace {

// What each device was given, in this process.
struct Seen {
  std::mutex mutex;
  std::map<int, std::int64_t> rows;
};
Seen& seen() {
  static Seen only;
  return only;
}

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    out = register_module("out", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const std::lock_guard lock(seen().mutex);
      seen().rows[x.device().index()] += x.size(0);
    }
    EXPECT_EQ(x.device(), hidden->weight.device());
    TORCH_CHECK(x.size(0) != fails_with, "the sensor is broken");
    const torch::Tensor features = torch::tanh(hidden(x));
    return out(normalises ? norm(features) : features);
  }
  torch::nn::Linear hidden{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
  bool normalises = false;
  std::int64_t fails_with = -1;
};
TORCH_MODULE(Net);

std::vector<torch::Device> first(int count) {
  std::vector<torch::Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(test_device(i));
  return devices;
}

Net make_net(torch::Device device) {
  torch::manual_seed(11);
  Net net;
  net->to(device);
  return net;
}

torch::Tensor inputs_of(std::int64_t rows, int step) {
  auto generator = at::detail::createCPUGenerator(100 + step);
  return torch::randn({rows, 6}, generator);
}

// Three steps of training; returns parameters, outputs of the last step and gradients of its input.
std::vector<torch::Tensor> train(Net net, torch::Device device, std::int64_t rows,
                                 const std::function<torch::Tensor(const torch::Tensor&)>& forward) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<torch::Tensor> result;
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor x = inputs_of(rows, step).to(device).requires_grad_();
    optimizer.zero_grad();
    const torch::Tensor out = forward(x);
    EXPECT_EQ(out.device(), device);
    out.square().mean().backward();
    optimizer.step();
    result = {out.detach().cpu(), x.grad().cpu()};
  }
  for (const torch::Tensor& parameter : net->parameters()) result.push_back(parameter.detach().cpu());
  return result;
}

class DeviceDataParallel : public testing::TestWithParam<int> {  // devices
 protected:
  DeviceDataParallel() {
    use_test_device();
    const std::lock_guard lock(seen().mutex);
    seen().rows.clear();
  }
};

TEST_P(DeviceDataParallel, SplitsThirtyInputsEvenly) {
  const std::map<int, std::map<int, std::int64_t>> expected{
      {1, {{0, 30}}}, {2, {{0, 15}, {1, 15}}}, {3, {{0, 10}, {1, 10}, {2, 10}}}, {4, {{0, 8}, {1, 8}, {2, 8}, {3, 6}}}};
  Net net = make_net(test_device(0));
  DataParallel<Net> parallel(net, {.device_ids = first(GetParam())});
  const torch::Tensor out = parallel.forward(torch::ones({30, 6}, test_device(0)));
  EXPECT_EQ(out.size(0), 30);
  EXPECT_EQ(out.device(), test_device(0));
  const std::lock_guard lock(seen().mutex);
  EXPECT_EQ(seen().rows, expected.at(GetParam()));
}

TEST_P(DeviceDataParallel, GivesTheResultOfOneDevice) {
  for (const std::int64_t rows : {30, 7, 2}) {
    Net alone = make_net(test_device(0));
    const auto expected = train(alone, test_device(0), rows, [&](const torch::Tensor& x) { return alone->forward(x); });
    Net net = make_net(test_device(0));
    DataParallel<Net> parallel(net, {.device_ids = first(GetParam())});
    const auto result = train(net, test_device(0), rows, [&](const torch::Tensor& x) { return parallel.forward(x); });
    ASSERT_EQ(result.size(), expected.size());
    for (std::size_t i = 0; i < result.size(); ++i) {
      EXPECT_TRUE(torch::allclose(result[i], expected[i], 1e-5, 1e-6)) << rows << " rows, tensor " << i;
    }
  }
}

TEST_P(DeviceDataParallel, TakesInputsFromTheProcessorAndGathersWhereItIsTold) {
  const int devices = GetParam();
  Net net = make_net(test_device(0));
  const torch::Tensor x = inputs_of(12, 0);
  const torch::Tensor expected = make_net(torch::kCPU)->forward(x);
  for (const torch::Device output : {torch::Device(torch::kCPU), test_device(devices - 1)}) {
    DataParallel<Net> parallel(net, {.device_ids = first(devices), .output_device = output});
    const torch::Tensor out = parallel.forward(x);
    EXPECT_EQ(out.device(), output);
    EXPECT_TRUE(torch::allclose(out.cpu(), expected, 1e-5, 1e-6));
    out.sum().backward();
    EXPECT_EQ(net->out->weight.grad().device(), test_device(0));
  }
}

TEST_P(DeviceDataParallel, KeepsTheBuffersOfTheFirstReplica) {
  const int devices = GetParam();
  Net net = make_net(test_device(0));
  net->normalises = true;
  DataParallel<Net> parallel(net, {.device_ids = first(devices)});
  Net alone = make_net(torch::kCPU);
  alone->normalises = true;
  const torch::Tensor x = inputs_of(12, 1);
  parallel.forward(x.to(test_device(0)));
  alone->forward(x.narrow(0, 0, 12 / devices));
  EXPECT_TRUE(torch::allclose(net->norm->running_mean.cpu(), alone->norm->running_mean, 1e-5, 1e-6));
  EXPECT_EQ(net->norm->running_mean.device(), test_device(0));
}

// Every other device gets the parameters and its rows, and gives back its results and its gradients: each once.
TEST_P(DeviceDataParallel, CopiesWhatItMust) {
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

TEST_P(DeviceDataParallel, NamesTheDeviceThatFailed) {
  const int devices = GetParam();
  if (devices < 2) return;
  Net net = make_net(test_device(0));
  net->fails_with = 1;  // fails on a part of one row, which only the last replica gets
  DataParallel<Net> parallel(net, {.device_ids = first(devices)});
  const std::int64_t rows = 2 * devices - 1;
  expect_in(error_of([&] {
              parallel.forward(torch::ones({rows, 6}, test_device(0)));
            }),
            {"the sensor is broken", "on test:" + std::to_string(devices - 1)});
  // The wrapper still works.
  EXPECT_EQ(parallel.forward(torch::ones({5 * devices, 6}, test_device(0))).size(0), 5 * devices);
}

TEST_P(DeviceDataParallel, LeavesNoMemoryBehind) {
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

INSTANTIATE_TEST_SUITE_P(Devices, DeviceDataParallel, testing::Values(1, 2, 3, 4));

TEST(DeviceScatter, WaitsForWhatGoesToTheProcessor) {
  use_test_device();
  const torch::Tensor x = torch::arange(8).to(test_device(0));
  const auto parts = parallel::scatter(x, std::vector<torch::Device>(2, torch::kCPU));
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(torch::equal(parts[0], torch::arange(4)));
  EXPECT_TRUE(torch::equal(parts[1], torch::arange(4, 8)));
}

TEST(DeviceDataParallelErrors, NameDevicesThatCannotBe) {
  use_test_device();
  Net net = make_net(test_device(0));
  const auto expect_refused = [&](const DataParallelOptions& options, const std::string& piece) {
    expect_in(error_of([&] { DataParallel<Net>(net, options); }), {piece});
  };
  expect_refused({.device_ids = {test_device(0), test_device(0)}}, "test:0");
  expect_refused({.device_ids = {test_device(0), test_device(4)}}, "test:4");
  expect_refused({.device_ids = {test_device(1), test_device(0)}}, "test:1");
  DataParallel<Net> all(net);
  EXPECT_EQ(all.devices(), first(4));
}

}  // namespace
}  // namespace lockstep::test
