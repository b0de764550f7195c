// A generator on all ranks and a discriminator in each half of them, in one loop: passes of one model alone, through a
// frozen model, and through both; ranks take other branches, and a half takes more steps. The judge is one process that
// computes the losses of all ranks with plain autograd, and takes the means that docs/ddp.md names. 3 s of a core.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

template <typename Layer>
Layer in_double(Layer layer) {
  layer->to(torch::kDouble);
  return layer;
}

struct GeneratorImpl : torch::nn::Module {
  Tensor forward(const Tensor& z, bool with_extra) {
    const Tensor y = last(torch::tanh(first(z)));
    return with_extra ? y + extra(y) : y;
  }
  torch::nn::Linear first = register_module("first", in_double(torch::nn::Linear(3, 4)));
  torch::nn::Linear last = register_module("last", in_double(torch::nn::Linear(4, 2)));
  torch::nn::Linear extra = register_module("extra", in_double(torch::nn::Linear(2, 2)));
};
TORCH_MODULE(Generator);

struct DiscriminatorImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first = register_module("first", in_double(torch::nn::Linear(2, 5)));
  torch::nn::BatchNorm1d norm = register_module("norm", in_double(torch::nn::BatchNorm1d(5)));
  torch::nn::Linear last = register_module("last", in_double(torch::nn::Linear(5, 1)));
};
TORCH_MODULE(Discriminator);

// The same values wherever it is made.
template <typename Net>
Net net_of_seed(int seed) {
  Net net;
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : net->parameters()) {
    parameter.copy_(torch::randn(parameter.sizes(), at::detail::createCPUGenerator(static_cast<std::uint64_t>(++seed)),
                                 torch::kDouble));
  }
  return net;
}

Tensor gan_numbers(int what, int rank, int step, std::int64_t columns) {
  const auto seed = static_cast<std::uint64_t>(100'000 * what + 100 * step + rank);
  return torch::randn({6, columns}, at::detail::createCPUGenerator(seed), torch::kDouble);
}

bool takes_extra(int rank, int step) {
  return (rank + step) % 3 != 0;
}

// Losses of a rank. `generate` and `judge` are the models, wrapped or not.
template <typename Generate, typename Discriminate>
Tensor discriminators_loss(const Generate& generate, const Discriminate& discriminate, int rank, int step) {
  Tensor fake;
  {
    const torch::NoGradGuard no_grad;
    fake = generate(gan_numbers(1, rank, step, 3), takes_extra(rank, step));
  }
  const Tensor scores = discriminate(torch::cat({gan_numbers(2, rank, step, 2) + 3, fake}));
  return (scores.slice(0, 0, 6) - 1).square().mean() + scores.slice(0, 6).square().mean();
}
template <typename Generate, typename Discriminate>
Tensor generators_loss(const Generate& generate, const Discriminate& discriminate, int rank, int step) {
  return (discriminate(generate(gan_numbers(3, rank, step, 3), takes_extra(rank, step))) - 1).square().mean();
}

void descend_and_clear(const std::vector<Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (Tensor parameter : parameters) {
    if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.05);
    parameter.mutable_grad().reset();
  }
}

struct HalfOfRanks {
  std::vector<int> ranks;
  Discriminator net{nullptr};
};

// All ranks in one process.
struct GanJudge {
  explicit GanJudge(const std::vector<std::vector<int>>& groups) {
    for (const auto& ranks : groups) halves.push_back({ranks, net_of_seed<Discriminator>(50)});
  }
  template <typename Loss>
  void of_half(HalfOfRanks& half, const Loss& loss) {
    // Each rank's pass begins with the same buffers, and the first rank's count.
    std::vector<Tensor> before;
    std::vector<Tensor> after;
    for (const Tensor& buffer : half.net->buffers()) before.push_back(buffer.clone());
    for (const int rank : half.ranks) {
      put_buffers(half.net, before);
      loss(rank).backward();
      if (rank != half.ranks.front()) continue;
      for (const Tensor& buffer : half.net->buffers()) after.push_back(buffer.clone());
    }
    put_buffers(half.net, after);
  }
  static void put_buffers(const Discriminator& net, const std::vector<Tensor>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) net->buffers()[i].copy_(values[i]);
  }
  static void divide(const std::vector<Tensor>& parameters, std::size_t ranks) {
    for (const Tensor& one : parameters) {
      if (one.grad().defined()) one.grad().div_(static_cast<double>(ranks));
    }
  }
  Tensor generate(const Tensor& z, bool with_extra) { return generator->forward(z, with_extra); }

  void train_discriminator(HalfOfRanks& half, int step) {
    of_half(half, [&](int rank) {
      return discriminators_loss([&](const Tensor& z, bool extra) { return generate(z, extra); },
                                 [&](const Tensor& x) { return half.net->forward(x); }, rank, step);
    });
    divide(half.net->parameters(), half.ranks.size());
    descend_and_clear(half.net->parameters());
  }
  // `jointly`: the discriminators are trained too.
  void train_generator(int step, bool jointly) {
    std::size_t ranks = 0;
    for (HalfOfRanks& half : halves) {
      of_half(half, [&](int rank) {
        return generators_loss([&](const Tensor& z, bool extra) { return generate(z, extra); },
                               [&](const Tensor& x) { return half.net->forward(x); }, rank, step);
      });
      divide(half.net->parameters(), half.ranks.size());
      if (!jointly) half.net->zero_grad();
      descend_and_clear(half.net->parameters());
      ranks += half.ranks.size();
    }
    divide(generator->parameters(), ranks);
    descend_and_clear(generator->parameters());
  }

  Generator generator = net_of_seed<Generator>(10);
  std::vector<HalfOfRanks> halves;
};

template <typename Net>
void expect_same_model(const Net& ours, const Net& judges, const std::string& where, bool with_buffers) {
  const auto compare = [&](const auto& mine, const auto& theirs) {
    for (const auto& item : mine) {
      EXPECT_TRUE(torch::allclose(item.value(), theirs[item.key()], 1e-10, 1e-12)) << where << ", " << item.key();
    }
  };
  compare(ours->named_parameters(), judges->named_parameters());
  if (with_buffers) compare(ours->named_buffers(), judges->named_buffers());
}

class SeveralModelsMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SeveralModelsMulti, testing::Values(2, 3, 4));

TEST_P(SeveralModelsMulti, TrainInOneLoopAsInOneProcess) {
  run_processes(GetParam(), [](int rank) {
    const Rank world;
    std::vector<std::vector<int>> groups(2);
    for (int other = 0; other < get_world_size(); ++other) groups[static_cast<std::size_t>(other % 2)].push_back(other);
    const auto mine = static_cast<std::size_t>(rank % 2);
    const ProcessGroup half = new_subgroups_by_enumeration(groups);
    GanJudge judge(groups);
    // The ranks begin with other values: the first rank's count.
    auto generator_net = net_of_seed<Generator>(rank == 0 ? 10 : 900 + rank);
    auto discriminator_net = net_of_seed<Discriminator>(rank < 2 ? 50 : 950 + rank);
    DistributedDataParallel<Generator> generator(generator_net);
    DistributedDataParallel<Discriminator> discriminator(discriminator_net, {.process_group = half});
    const auto generate = [&](const Tensor& z, bool extra) { return generator->forward(z, extra); };
    const auto discriminate = [&](const Tensor& x) { return discriminator->forward(x); };
    for (int step = 0; step < 8; ++step) {
      const std::string where = fmt::format("step {}, rank {}", step, rank);
      // One half may take two steps.
      for (std::size_t of = 0; of < 2; ++of) {
        for (int times = 0; times < (step % 2 == static_cast<int>(of) ? 2 : 1); ++times) {
          judge.train_discriminator(judge.halves[of], 10 * step + times);
          if (of != mine) continue;
          discriminators_loss(generate, discriminate, rank, 10 * step + times).backward();
          descend_and_clear(discriminator.parameters());
        }
      }
      expect_same_model(discriminator_net, judge.halves[mine].net, where + ", discriminator", /*with_buffers=*/true);
      const bool jointly = step % 3 == 2;
      for (Tensor& parameter : discriminator.parameters()) parameter.requires_grad_(jointly);
      generators_loss(generate, discriminate, rank, step).backward();
      descend_and_clear(generator.parameters());
      if (jointly) descend_and_clear(discriminator.parameters());
      for (Tensor& parameter : discriminator.parameters()) parameter.requires_grad_(true);
      judge.train_generator(step, jointly);
      expect_same_model(generator_net, judge.generator, where + ", generator", true);
      expect_same_model(discriminator_net, judge.halves[mine].net, where + ", discriminator after", jointly);
    }
  });
}

}  // namespace
}  // namespace lockstep::test
