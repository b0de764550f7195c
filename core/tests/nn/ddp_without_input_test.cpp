// Steps in which some ranks have no samples, and take part without a forward pass. 2 s of a core.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/nn/sync_batch_norm.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

struct PartlyUsedImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, bool with_extra) {
    if (is_training()) calls.add_(get_rank() + 1);
    const torch::Tensor y = last(torch::tanh(first(x)));
    return (with_extra ? y + extra(y) : y).square().mean();
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(7, 3));
  torch::nn::Linear extra = register_module("extra", torch::nn::Linear(3, 3));
  torch::Tensor calls = register_buffer("calls", torch::zeros({1}));
};
TORCH_MODULE(PartlyUsed);

class WithoutInputMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, WithoutInputMulti, testing::Values(1, 2, 3, 4));

// Step s: rank s has no samples, in its second micro-batch or in its only batch; rank s + 1 has none in its first
// micro-batch. In step 3 no rank has samples.
bool has_samples(int step, int part, int parts) {
  if (step == 3) return false;
  const int idle = (part + 1 == parts ? step : step + 1) % get_world_size();
  return get_rank() != idle;
}

void train_with_gaps(const DistributedDataParallelOptions& options, int parts, const std::string& what) {
  torch::manual_seed(1);
  PartlyUsed model;
  PartlyUsed twin;
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < model->parameters().size(); ++i) twin->parameters()[i].copy_(model->parameters()[i]);
  }
  DistributedDataParallel<PartlyUsed> ddp(model, options);
  for (int step = 0; step < 6; ++step) {
    model->zero_grad();
    twin->zero_grad();
    for (int part = 0; part < parts; ++part) {
      const auto guard = ddp.no_sync(part + 1 < parts);
      const bool with_extra = options.static_graph || step % 2 == 0;
      const torch::Tensor x = random_input({4, 5}, 10 * step + part);
      if (has_samples(step, part, parts)) {
        ddp->forward(x, with_extra).backward();
        twin->forward(x, with_extra).backward();
      } else {
        ddp.pass_without_input();
      }
    }
    average_gradients(*twin);
    const std::string where = what + ", step " + std::to_string(step);
    expect_same_gradients(*model, *twin, where, {.relative = 1e-6, .absolute = 1e-8});
    for (std::size_t i = 0; i < twin->parameters().size(); ++i) {
      if (get_world_size() == 1) break;
      EXPECT_EQ(model->parameters()[i].grad().defined(), twin->parameters()[i].grad().defined()) << where << ", " << i;
    }
    if (get_world_size() > 1) expect_equal_on_all_ranks({model->calls}, where + ", buffer");
  }
}

TEST_P(WithoutInputMulti, HasTheMeanOfTheOtherRanks) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const int parts : {1, 2}) {
      train_with_gaps({}, parts, "plain");
      train_with_gaps({.static_graph = true}, parts, "static");
      train_with_gaps({.gradient_as_bucket_view = false}, parts, "no views");
      train_with_gaps({.bucket_cap_mb = 1e-4}, parts, "small buckets");
    }
  });
}

TEST_P(WithoutInputMulti, RefusesJoinsAndSynchronisedLayers) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    torch::nn::Sequential net(torch::nn::Linear(3, 3), SyncBatchNorm(3));
    DistributedDataParallel<torch::nn::Sequential> ddp(net);
    expect_in(error_of([&] { ddp.pass_without_input(); }), {"layer '1'", "call the model with an empty batch"});
    if (get_world_size() == 1) return;
    torch::nn::Linear line(3, 3);
    DistributedDataParallel<torch::nn::Linear> joined(line);
    expect_in(error_of([&] { joined.join([&] { joined.pass_without_input(); }); }), {"inside join()"});
    DistributedDataParallel<torch::nn::Linear> again(line);
    expect_in(error_of([&] { again.pass_without_input(); }), {"parameter 'weight' is wrapped twice", "empty batch"});
  });
}

// A look at the loss, whose graph goes or stays. On the rank without samples the pass may stand for that look.
TEST_P(WithoutInputMulti, ForwardPassesThatAreDroppedAreNoOtherStep) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    if (get_world_size() == 1) return;
    torch::manual_seed(1);
    PartlyUsed model;
    DistributedDataParallel<PartlyUsed> ddp(model);
    for (int step = 0; step < 8; ++step) {
      const bool idle = get_rank() == step % get_world_size();
      torch::Tensor kept;
      const bool all_look = step < 6;
      if (all_look || idle) kept = ddp->forward(random_input({4, 5}, step), false);
      if (step % 2 == 0) kept.reset();
      model->zero_grad();
      idle ? ddp.pass_without_input() : ddp->forward(random_input({4, 5}, step), true).backward();
      expect_equal_on_all_ranks({model->first->weight.grad()}, "gradient");
    }
  });
}

}  // namespace
}  // namespace lockstep::test
