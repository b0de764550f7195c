// Ranks with different numbers of inputs, whose models are on devices.
#include "lockstep/nn/join.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/conv_net.h"
#include "device/device_ranks.h"
#include "lockstep/nn/distributed_data_parallel.h"

namespace lockstep::test {
namespace {

// Rank 0 has two inputs, each further rank two more than the one before it. `ended`: join threw.
struct Joined {
  State state;
  bool ended = false;
};

Joined train_joined(torch::Device device, int rank, const JoinOptions& options, bool compressed = false) {
  torch::manual_seed(7 + rank);
  ConvNet net;
  net->to(device);
  DistributedDataParallel<ConvNet> ddp(net, {.bucket_cap_mb = 0.004});
  if (compressed) ddp.register_comm_hook(make_compress_hook(torch::kHalf));
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto loop = [&] {
    for (int step = 0; step < 2 * (rank + 1); ++step) {
      optimizer.zero_grad();
      ddp->is_training();  // operator-> begins the pass
      loss_on(net, device).backward();
      optimizer.step();
    }
  };
  Joined result;
  try {
    ddp.join(loop, options);
  } catch (const UnevenInputsError&) {
    result.ended = true;
  }
  for (const torch::Tensor& parameter : net->parameters()) EXPECT_EQ(parameter.device(), device);
  result.state = state_of(net);
  return result;
}

TEST(DeviceJoinMulti, GivesTheWeightsOfTheProcessor) {
  run_on_devices(2, [](int rank, torch::Device device) {
    for (const bool by_initial : {true, false}) {
      for (const bool compressed : {false, true}) {
        const JoinOptions options{.divide_by_initial_world_size = by_initial};
        const std::string what = c10::str("divided by all ranks ", by_initial, ", compressed ", compressed);
        const Joined expected = train_joined(torch::kCPU, rank, options, compressed);
        const Joined actual = train_joined(device, rank, options, compressed);
        expect_same(actual.state, expected.state, what);
        EXPECT_FALSE(expected.ended || actual.ended) << what;
      }
    }
  });
}

TEST(DeviceJoinMulti, EndsOnEveryRankIfItShould) {
  run_on_devices(3, [](int rank, torch::Device device) {
    const JoinOptions options{.throw_on_early_termination = true};
    const Joined expected = train_joined(torch::kCPU, rank, options);
    const Joined actual = train_joined(device, rank, options);
    EXPECT_TRUE(expected.ended && actual.ended);
    expect_same(actual.state, expected.state, "ended");
  });
}

}  // namespace
}  // namespace lockstep::test
