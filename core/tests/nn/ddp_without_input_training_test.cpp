// Whole trainings in which ranks have no samples in some steps: two wrapped models, one over all ranks and one in
// sub-groups, with optimizers that communicate. The judge is one process that computes the gradients of all ranks'
// samples, takes their mean as docs/ddp.md says, and steps with LibTorch's optimizer. 6 s of a core.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include "lockstep/nn/shared_step.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
using AnyOptimizer = std::unique_ptr<torch::optim::Optimizer>;

constexpr int kGappySteps = 6;

struct BranchedImpl : torch::nn::Module {
  explicit BranchedImpl(int seed) {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : parameters()) {
      parameter.copy_(torch::randn(parameter.sizes(),
                                   at::detail::createCPUGenerator(static_cast<std::uint64_t>(++seed)), torch::kDouble));
    }
  }
  Tensor loss(const Tensor& x, bool with_extra) {
    const Tensor y = last(torch::tanh(first(x)));
    return (with_extra ? y + extra(y) : y).square().mean();
  }
  static torch::nn::Linear layer(std::int64_t inputs, std::int64_t outputs) {
    torch::nn::Linear made(inputs, outputs);
    made->to(torch::kDouble);
    return made;
  }
  torch::nn::Linear first = register_module("first", layer(5, 7));
  torch::nn::Linear last = register_module("last", layer(7, 3));
  torch::nn::Linear extra = register_module("extra", layer(3, 3));
};
TORCH_MODULE(Branched);

// One micro-batch of a model on one rank.
struct GappyBatch {
  bool is_empty;
  bool with_extra;
  Tensor x;
};
// Model 0 is that of all ranks, model 1 that of a sub-group. In step 4 no rank has samples of model 0. The last rank
// never has some in step 2.
GappyBatch gappy_batch(int model, int rank, int ranks, int step, int part, int parts) {
  const bool idle = rank == (step + part + model) % ranks || (part + 1 == parts && rank == (step + 1) % ranks);
  const bool none = (step == 4 && model == 0) || (step == 2 && rank == ranks - 1);
  const auto seed = static_cast<std::uint64_t>(10'000 * model + 1000 * step + 100 * part + rank);
  return {none || (ranks > 1 && idle), (rank + step) % 3 == 0,
          torch::randn({4, 5}, at::detail::createCPUGenerator(seed), torch::kDouble)};
}

struct StepKind {
  const char* name;
  std::function<AnyOptimizer(const std::vector<Tensor>&, const ProcessGroup&)> make;
  bool takes_mean = false;  // the optimizer, and not the wrapper
};
const torch::optim::SGDOptions kGappySgd = torch::optim::SGDOptions(0.1).momentum(0.9);
using PlainSgd = torch::optim::SGD;

std::vector<StepKind> step_kinds() {
  return {{"plain",
           [](const auto& all, const auto&) -> AnyOptimizer { return std::make_unique<PlainSgd>(all, kGappySgd); }},
          {"zero",
           [](const auto& all, const ProcessGroup& group) -> AnyOptimizer {
             return std::make_unique<ZeroRedundancyOptimizer<PlainSgd>>(all, kGappySgd,
                                                                        ZeroRedundancyOptions{.process_group = group});
           }},
          {"shared",
           [](const auto& all, const ProcessGroup& group) -> AnyOptimizer {
             return std::make_unique<SharedStep<PlainSgd>>(all, kGappySgd, SharedStepOptions{.process_group = group});
           }},
          {"shared, of the mean",
           [](const auto& all, const ProcessGroup& group) -> AnyOptimizer {
             return std::make_unique<SharedStep<PlainSgd>>(
                 all, kGappySgd, SharedStepOptions{.process_group = group, .average_gradients = true});
           },
           true}};
}

// A model of the ranks `members`, in one process.
struct JudgeOfMembers {
  JudgeOfMembers(int the_number, int seed, std::vector<int> the_members)
      : number(the_number), members(std::move(the_members)), net(seed), optimizer(net->parameters(), kGappySgd) {}
  void step(int ranks, int step, int parts) {
    net->zero_grad();
    for (const int rank : members) {
      for (int part = 0; part < parts; ++part) {
        const GappyBatch batch = gappy_batch(number, rank, ranks, step, part, parts);
        if (!batch.is_empty) net->loss(batch.x, batch.with_extra).backward();
      }
    }
    for (const Tensor& parameter : net->parameters()) {
      if (parameter.grad().defined()) parameter.grad().div_(static_cast<double>(members.size()));
    }
    optimizer.step();
  }
  int number;
  std::vector<int> members;
  Branched net;
  PlainSgd optimizer;
};

// This rank's part of it.
struct TrainedHere {
  TrainedHere(int the_number, int seed, const StepKind& kind, const ProcessGroup& group,
              const DistributedDataParallelOptions& options)
      : number(the_number), net(seed), ddp(net, options) {
    if (kind.takes_mean) ddp.register_comm_hook(make_noop_hook());
    optimizer = kind.make(ddp.parameters(), group);
  }
  void step(int step, int parts) {
    optimizer->zero_grad();
    for (int part = 0; part < parts; ++part) {
      const auto guard = ddp.no_sync(part + 1 < parts);
      const GappyBatch batch = gappy_batch(number, get_rank(), get_world_size(), step, part, parts);
      if (batch.is_empty) {
        ddp.pass_without_input();
      } else {
        ddp->loss(batch.x, batch.with_extra).backward();
      }
    }
    optimizer->step();
  }
  int number;
  Branched net;
  DistributedDataParallel<Branched> ddp;
  AnyOptimizer optimizer;
};

void expect_same_weights(const Branched& ours, const Branched& judges, const std::string& where) {
  for (const auto& item : ours->named_parameters()) {
    const Tensor expected = judges->named_parameters()[item.key()];  // of a dict that ends with this line
    EXPECT_TRUE(torch::allclose(item.value(), expected, 1e-10, 1e-12))
        << where << ", " << item.key() << " differs by up to " << (item.value() - expected).abs().max().item<double>();
  }
}

void train_two_models(const StepKind& kind, int parts, const ProcessGroup& group, const std::vector<int>& members,
                      DistributedDataParallelOptions options) {
  TrainedHere of_all(0, 100, kind, nullptr, options);
  options.process_group = group;
  TrainedHere of_group(1, 200, kind, group, options);
  std::vector<int> all(static_cast<std::size_t>(get_world_size()));
  std::iota(all.begin(), all.end(), 0);
  JudgeOfMembers judge_of_all(0, 100, all);
  JudgeOfMembers judge_of_group(1, 200, members);
  for (int step = 0; step < kGappySteps; ++step) {
    // A sub-group has one more step of its own where its first rank is even.
    for (int times = 0; times < (members.front() % 2 == 0 ? 2 : 1); ++times) {
      of_group.step(kGappySteps * times + step, parts);
      judge_of_group.step(get_world_size(), kGappySteps * times + step, parts);
    }
    of_all.step(step, parts);
    judge_of_all.step(get_world_size(), step, parts);
    const std::string where = fmt::format("{}, {} parts, step {}, rank {}", kind.name, parts, step, get_rank());
    expect_same_weights(of_all.net, judge_of_all.net, where + ", model of all");
    expect_same_weights(of_group.net, judge_of_group.net, where + ", model of a group");
  }
}

class WithoutInputTrainingMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, WithoutInputTrainingMulti, testing::Values(2, 3, 5));

TEST_P(WithoutInputTrainingMulti, HasTheWeightsOfOneProcess) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    std::vector<std::vector<int>> halves(2);  // even and odd ranks
    for (int other = 0; other < get_world_size(); ++other) halves[static_cast<std::size_t>(other % 2)].push_back(other);
    const ProcessGroup half = new_subgroups_by_enumeration(halves);
    const std::vector<int>& members = halves[static_cast<std::size_t>(number % 2)];
    for (const StepKind& kind : step_kinds()) {
      for (const int parts : {1, 3}) {
        train_two_models(kind, parts, half, members, {});
        train_two_models(kind, parts, half, members, {.bucket_cap_mb = 1e-4});
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::test
