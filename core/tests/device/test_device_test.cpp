// The test device itself: what it promises, so that tests on it mean something.
#include "support/test_device.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace lockstep::test {
namespace {

class TestDevice : public testing::Test {
 protected:
  TestDevice() {
    use_test_device();
    reset_traffic();
  }

  static torch::Tensor on(int device, const torch::Tensor& values) { return values.to(test_device(device)); }
  static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(test_device(0).type()); }
};
using TestDeviceDeathTest = TestDevice;

TEST_F(TestDeviceDeathTest, MemoryFaultsWhenTheProcessorTouchesIt) {
  const torch::Tensor tensor = on(1, torch::arange(4, torch::kFloat));
  const auto* const data = static_cast<const volatile float*>(tensor.const_data_ptr());
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(static_cast<void>(data[0]), "");
  EXPECT_DEATH(static_cast<float*>(tensor.mutable_data_ptr())[3] = 1, "");
  EXPECT_TRUE(torch::equal(tensor.cpu(), torch::arange(4, torch::kFloat)));
}

TEST_F(TestDevice, HasFourDevicesByName) {
  EXPECT_EQ(torch::Device("test:3"), test_device(3));
  EXPECT_EQ(test_device(2).str(), "test:2");
  EXPECT_EQ(guard().deviceCount(), 4);
  EXPECT_EQ(torch::empty({2}, torch::Device("test")).device(), test_device(0));
  EXPECT_THROW(torch::empty({2}, test_device(4)), c10::Error);
  const c10::DeviceGuard second(test_device(1));
  EXPECT_EQ(torch::empty({2}, torch::Device("test")).device(), test_device(1));
}

TEST_F(TestDevice, CountsCopiesWithTheirBytes) {
  const torch::Tensor there = on(0, torch::ones({10}, torch::kFloat));
  EXPECT_EQ(traffic(0), (Traffic{.from_host = {1, 40}}));
  const torch::Tensor sum = (there + there).relu();  // kernels copy too, but that is not counted
  EXPECT_EQ(traffic(0), (Traffic{.from_host = {1, 40}}));
  const torch::Tensor elsewhere = sum.to(test_device(2));
  EXPECT_EQ(traffic(2), (Traffic{.from_peer = {1, 40}}));
  EXPECT_EQ(elsewhere.sum().item<float>(), 20);
  EXPECT_EQ(traffic(2), (Traffic{.to_host = {1, 4}, .from_peer = {1, 40}}));
  EXPECT_EQ(traffic(0).to_host, Copies{});
  const torch::Tensor back = torch::zeros({10}, torch::kFloat).pin_memory();
  back.copy_(sum);
  EXPECT_EQ(traffic(0).to_host, (Copies{1, 40}));
  on(0, back);  // blocking
  EXPECT_EQ(traffic(0).from_host, (Copies{2, 80}));
  EXPECT_EQ(traffic(0).pinned, (Copies{2, 80}));
  EXPECT_EQ(traffic(0).enqueued, Copies{});
}

TEST_F(TestDevice, FreesItsMemory) {
  const int before = allocated_blocks(3);
  {
    const torch::Tensor a = on(3, torch::ones({3}));
    const torch::Tensor view = a.narrow(0, 1, 1);
    EXPECT_EQ(allocated_blocks(3), before + 1);
  }
  EXPECT_EQ(allocated_blocks(3), before);
}

TEST_F(TestDevice, ViewsShareMemoryAndStoragesGrow) {
  torch::Tensor base = on(0, torch::arange(12, torch::kFloat).view({3, 4}));
  base.t().select(0, 1).add_(100);
  base.as_strided({2}, {5}, 2).zero_();
  torch::Tensor expected = torch::arange(12, torch::kFloat).view({3, 4});
  expected.t().select(0, 1).add_(100);
  expected.as_strided({2}, {5}, 2).zero_();
  EXPECT_TRUE(torch::equal(base.cpu(), expected));
  base.resize_({4, 4});
  EXPECT_TRUE(torch::equal(base.cpu().narrow(0, 0, 3), expected));
  torch::Tensor other = torch::empty({0}, base.options());
  other.set_(base.storage(), 4, {4}, {1});
  EXPECT_TRUE(torch::equal(other.cpu(), expected[1]));
  EXPECT_EQ(base.view(torch::kInt)[0][0].item<int>(), 0);
  const torch::Tensor mixed = torch::empty({3, 4}, torch::kDouble);
  mixed.t().copy_(base.narrow(0, 0, 3).t());
  EXPECT_TRUE(torch::equal(mixed, expected.to(torch::kDouble)));
}

TEST_F(TestDevice, RefusesTensorsOfTwoDevicesInOneKernel) {
  const torch::Tensor first = on(0, torch::ones({2}));
  EXPECT_THROW(first + on(1, torch::ones({2})), c10::Error);
  EXPECT_THROW(first + torch::ones({2}), c10::Error);
  EXPECT_EQ((first + torch::tensor(1.0F)).sum().item<float>(), 4);
}

// Streams are lazy, so a missing wait always gives a wrong result.
TEST_F(TestDevice, CopiesOfAStreamWaitUntilSomebodyWaitsForThem) {
  const torch::Tensor host = torch::full({8}, 7, torch::kInt).pin_memory();
  ASSERT_TRUE(host.is_pinned());
  const torch::Tensor fresh = torch::full({8}, static_cast<int>(0xCBCBCBCB), torch::kInt);
  const c10::Stream side = guard().getStreamFromGlobalPool(test_device(0));
  torch::Tensor there;
  c10::Event done(test_device(0).type());
  {
    const c10::StreamGuard on_side(side);
    there = host.to(test_device(0), /*non_blocking=*/true);
    done.record(side);
  }
  there.record_stream(guard().getStream(test_device(0)));
  EXPECT_EQ(traffic(0).enqueued, (Copies{1, 32}));
  EXPECT_TRUE(torch::equal(there.cpu(), fresh));  // the default stream has not waited
  done.block(guard().getStream(test_device(0)));
  EXPECT_TRUE(torch::equal(there.cpu(), host));
  const torch::Tensor back = there.to(torch::kCPU, /*non_blocking=*/true);
  EXPECT_TRUE(back.is_pinned());
  EXPECT_TRUE(torch::equal(back, fresh));
  guard().getStream(test_device(0)).synchronize();
  EXPECT_TRUE(torch::equal(back, host));
}

TEST_F(TestDevice, ReportsAStreamThatUsesFreedMemory) {
  const torch::Tensor host = torch::ones({4}).pin_memory();
  const c10::Stream side = guard().getStreamFromGlobalPool(test_device(0));
  const auto copy_on_side = [&](bool recorded) {
    const torch::Tensor there = torch::empty({4}, test_device(0));
    const c10::StreamGuard on_side(side);
    there.copy_(host, /*non_blocking=*/true);
    if (recorded) there.record_stream(side);
  };
  copy_on_side(true);
  EXPECT_NO_THROW(side.synchronize());
  copy_on_side(false);
  EXPECT_THROW(side.synchronize(), c10::Error);
}

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    fc = register_module("fc", torch::nn::Linear(3 * 4 * 4, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor maps = torch::max_pool2d(torch::relu(norm(conv(x))), 2);
    return torch::log_softmax(fc(torch::dropout(maps.flatten(1), 0.25, is_training())), 1);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(SmallNet);

// Three steps of training; returns parameters and buffers.
std::vector<torch::Tensor> train(torch::Device device) {
  torch::manual_seed(3);
  SmallNet net;
  net->to(device);
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor x = torch::randn({6, 1, 8, 8}).to(device);
    const torch::Tensor y = torch::randint(0, 5, {6}, torch::kLong).to(device);
    optimizer.zero_grad();
    torch::nll_loss(net(x), y).backward();
    optimizer.step();
  }
  std::vector<torch::Tensor> state;
  for (const torch::Tensor& tensor : net->parameters()) state.push_back(tensor.detach().cpu());
  for (const torch::Tensor& tensor : net->buffers()) state.push_back(tensor.cpu());
  return state;
}

TEST_F(TestDevice, TrainsAsTheProcessorDoesBitForBit) {
  const auto expected = train(torch::kCPU);
  for (const int device : {0, 3}) {
    const auto state = train(test_device(device));
    ASSERT_EQ(state.size(), expected.size());
    for (std::size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(torch::equal(state[i], expected[i])) << i;
  }
}

TEST_F(TestDevice, RunsBackwardOfEachDeviceInItsOwnThread) {
  std::array<std::thread::id, 2> threads;
  std::vector<torch::Tensor> losses;
  for (int device = 0; device < 2; ++device) {
    torch::Tensor leaf = torch::ones({2}, torch::TensorOptions(test_device(device)).requires_grad(true));
    torch::Tensor middle = leaf * 2;
    middle.register_hook([&threads, device](const torch::Tensor& gradient) {
      threads[static_cast<std::size_t>(device)] = std::this_thread::get_id();
      EXPECT_EQ(gradient.device(), test_device(device));
    });
    losses.push_back((middle * 3).sum().to(test_device(0)));
  }
  (losses[0] + losses[1]).backward();
  EXPECT_NE(threads[0], threads[1]);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

}  // namespace
}  // namespace lockstep::test
