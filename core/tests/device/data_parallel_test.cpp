// DataParallel on devices: who gets which rows, the result of one device, what is copied, errors with their device.
#include "lockstep/nn/data_parallel.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/parallel_net.h"
#include "nn/error_texts.h"
#include "support/device.h"

namespace lockstep::test {
namespace {

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
            {"the sensor is broken", "on " + test_device(devices - 1).str()});
  // The wrapper still works.
  EXPECT_EQ(parallel.forward(torch::ones({5 * devices, 6}, test_device(0))).size(0), 5 * devices);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceDataParallel, testing::ValuesIn(test_device_counts()));

TEST(DeviceScatter, WaitsForWhatGoesToTheProcessor) {
  use_test_device();
  const torch::Tensor x = torch::arange(8).to(test_device(0));
  const auto parts = parallel::scatter(x, std::vector<torch::Device>(2, torch::kCPU));
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_TRUE(torch::equal(parts[0], torch::arange(4)));
  EXPECT_TRUE(torch::equal(parts[1], torch::arange(4, 8)));
}

}  // namespace
}  // namespace lockstep::test
