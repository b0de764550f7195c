// Errors that need several devices, or one without kernels of its own: only the test device is sure to be such.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/conv_net.h"
#include "device/device_ranks.h"
#include "device/parallel_net.h"
#include "device/rows.h"
#include "lockstep/data/errors.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/fused_step.h"
#include "nn/error_texts.h"
#include "support/test_device.h"

namespace lockstep::test {
namespace {

TEST(DeviceBackends, NameTheDevicesThatThereAre) {
  use_test_device();
  expect_in(error_of([] { init_process_group("gpu:lockstep"); }), {"cpu, cuda or test, found 'gpu'"});
}

TEST(DeviceDdpErrors, NameTheDeviceOfTheModule) {
  use_test_device();
  const ProcessGroupGuard group("lockstep");
  ConvNet net;
  net->to(test_device(1));
  expect_in(error_of([&] { DistributedDataParallel<ConvNet>(net, {.device_ids = {test_device(3)}}); }),
            {"the module is on test:1, got test:3"});
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

TEST(DeviceDataLoaderErrors, RefuseADeviceThatIsNotThere) {
  use_test_device();
  EXPECT_THROW(data::DataLoader(Rows(4), loader_options(test_device(4), 0)), data::DataError);
}

// LibTorch's fused kernels are for the CPU and for CUDA.
TEST(DeviceFusedStep, LeavesTheStepToTheOptimizer) {
  use_test_device();
  torch::Tensor parameter = torch::ones({3}, torch::TensorOptions(test_device(1)).requires_grad(true));
  parameter.mutable_grad() = torch::ones({3}, test_device(1));
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.5).momentum(0.9));
  EXPECT_FALSE(fused_step(optimizer));
  expect_on_device(parameter.detach(), test_device(1), torch::full({3}, 0.5F), "parameter");
}

}  // namespace
}  // namespace lockstep::test
