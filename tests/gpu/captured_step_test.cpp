// Steps that a CUDA graph repeats: the losses and weights are those of the same steps without it.
#include "lockstep/nn/captured_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "device/device_ranks.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "nn/error_texts.h"

namespace lockstep::test {
namespace {

struct Form {
  const char* name;
  bool captured_optimizer = false;  // SGD without a schedule
  bool synchronised = false;
  std::shared_ptr<CommHook> (*hook)() = nullptr;
};

struct Outcome {
  std::vector<double> losses;
  std::vector<torch::Tensor> weights;
};

Outcome train(torch::Device device, int rank, const Form& form, bool captured) {
  torch::manual_seed(1);
  auto net = models::resnet18({.num_classes = 10, .small_images = true});
  net->to(device, test_device_float());
  if (form.synchronised) convert_sync_batchnorm(net);
  DistributedDataParallel<models::ResNet> ddp(net);
  if (form.hook != nullptr) ddp.register_comm_hook(form.hook());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const auto options = torch::dtype(test_device_float()).device(device);
  const torch::Tensor x = torch::empty({4, 3, 32, 32}, options);
  const torch::Tensor y = torch::empty({4}, options.dtype(torch::kLong));
  torch::Tensor loss;
  const auto body = [&] {
    optimizer.zero_grad();
    loss = torch::cross_entropy_loss(ddp.forward(x), y);
    loss.backward();
    if (form.captured_optimizer) fused_step(optimizer);
  };
  CapturedStep step(body, {.device = captured ? device : torch::Device(torch::kCPU)});
  Outcome found;
  for (int i = 0; i < 8; ++i) {
    torch::manual_seed(100 * i + rank);
    x.copy_(torch::randn(x.sizes(), test_device_float()));
    y.copy_(torch::randint(10, {4}, torch::kLong));
    step();
    if (!form.captured_optimizer) fused_step(optimizer);
    found.losses.push_back(loss.item<double>());
  }
  EXPECT_EQ(step.is_captured(), captured);
  for (const torch::Tensor& tensor : net->parameters()) found.weights.push_back(tensor.detach().cpu());
  for (const torch::Tensor& tensor : net->buffers()) found.weights.push_back(tensor.cpu());
  return found;
}

class GraphedTraining : public testing::TestWithParam<int> {};

TEST_P(GraphedTraining, IsThatOfTheSameStepsWithoutAGraph) {
  run_on_devices(
      GetParam(),
      [](int rank, torch::Device device) {
        for (const Form& form : {Form{"step outside"}, Form{"step inside", true}, Form{"synchronised", false, true},
                                 Form{"half", false, false, [] { return make_compress_hook(torch::kHalf); }}}) {
          const Outcome expected = train(device, rank, form, false);
          const Outcome actual = train(device, rank, form, true);
          for (std::size_t i = 0; i < expected.losses.size(); ++i)
            EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-6) << form.name << ", step " << i;
          for (std::size_t i = 0; i < expected.weights.size(); ++i)
            EXPECT_TRUE(torch::allclose(actual.weights[i], expected.weights[i], 1e-5, 1e-7)) << form.name << ' ' << i;
        }
      },
      "cpu:lockstep,cuda:nccl");
}
INSTANTIATE_TEST_SUITE_P(Worlds, GraphedTraining, testing::Values(1, 2));

// What cannot be recorded is an error, after which the GPU still works.
TEST(GraphedStep, ThatWaitsIsAnError) {
  run_on_devices(
      1,
      [](int /*rank*/, torch::Device device) {
        const torch::Tensor x = torch::ones({10}, device);
        CapturedStep step([&] { EXPECT_EQ(x.sum().item<float>(), 10); }, {.warm_up = 1});
        step();
        expect_in(error_of([&] { step(); }), {"could not be recorded", "must not wait for the GPU"});
        EXPECT_EQ((x + 1).sum().item<float>(), 20);
        EXPECT_GT(torch::rand({1000}, x.options()).max().item<float>(), 0.5F) << "outside a recording";
        torch::Tensor y;
        CapturedStep good([&] { y = torch::rand({1000}, x.options()); }, {.warm_up = 1});
        good();
        good();
        const torch::Tensor first = y.clone();
        good();
        EXPECT_FALSE(torch::equal(first, y)) << "random numbers go on";
      },
      "cpu:lockstep,cuda:nccl");
}

// NCCL waits for recordings of its collectives. The group is destroyed while one is alive.
TEST(GraphedStep, OutlivesTheGroup) {
  run_processes(2, [](int rank) {
    prepare_rank(rank);
    use_test_device();
    init_process_group("cpu:lockstep,cuda:nccl");
    const torch::Tensor x = torch::ones({10}, local_device());
    CapturedStep step([&] { all_reduce(x); }, {.warm_up = 1});
    for (int i = 0; i < 4; ++i) step();
    EXPECT_EQ(x[0].item<float>(), 16);
    destroy_process_group();
    EXPECT_FALSE(step.is_captured());
  });
}

}  // namespace
}  // namespace lockstep::test
