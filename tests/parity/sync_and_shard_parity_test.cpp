// Synchronised batch normalisation and sharded optimizers beside Python on the same data: weights after 30 steps, for
// each layer with each optimizer, sharded and plain; and the owners that PyTorch's ZeroRedundancyOptimizer chooses.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "support/process_ranks.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

using torch::Tensor;
using torch::nn::Sequential;
using Tensors = std::map<std::string, Tensor>;

constexpr int kSyncSteps = 30;

Tensor random(torch::IntArrayRef shape, int seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(shape, generator, torch::kDouble);
}

void fill(Sequential& net) {
  const torch::NoGradGuard no_grad;
  net->to(torch::kDouble);
  int seed = 77;
  for (Tensor& parameter : net->parameters()) parameter.copy_(random(parameter.sizes(), seed++) * 0.3);
}

Tensors read(const std::string& path) {
  return checkpoint::read_tensor_file(path, checkpoint::Checksum::kIfPresent).tensors;
}

void expect_same(const Sequential& net, const Tensors& expected, const std::string& where) {
  const auto compare = [&](const auto& items) {
    for (const auto& item : items) {
      if (!item.value().defined()) continue;
      const Tensor ours = item.value().to(torch::kDouble);
      const Tensor& theirs = expected.at(item.key());
      EXPECT_TRUE(torch::allclose(ours, theirs, 1e-6, 1e-9))
          << where << ": " << item.key() << " differs by up to " << (ours - theirs).abs().max();
    }
  };
  compare(net->named_parameters());
  compare(net->named_buffers());
}

// The optimizer of a name, sharded or plain.
std::unique_ptr<torch::optim::Optimizer> make(const std::string& name, bool sharded,
                                              const std::vector<Tensor>& parameters) {
  const auto of = [&]<typename Inner, typename Options>(std::type_identity<Inner>, const Options& options) {
    return sharded ? std::unique_ptr<torch::optim::Optimizer>(
                         std::make_unique<ZeroRedundancyOptimizer<Inner>>(parameters, options))
                   : std::make_unique<Inner>(parameters, options);
  };
  if (name == "sgd") return of(std::type_identity<torch::optim::SGD>(), torch::optim::SGDOptions(0.05).momentum(0.9));
  if (name == "adam") return of(std::type_identity<torch::optim::Adam>(), torch::optim::AdamOptions(0.01));
  if (name == "adamw") return of(std::type_identity<torch::optim::AdamW>(), torch::optim::AdamWOptions(0.01));
  if (name == "rmsprop") return of(std::type_identity<torch::optim::RMSprop>(), torch::optim::RMSpropOptions(0.01));
  return of(std::type_identity<torch::optim::Adagrad>(), torch::optim::AdagradOptions(0.05));
}

Sequential normalised_model(const std::string& kind) {
  const std::optional<double> momentum = kind == "cumulative" ? std::nullopt : std::optional<double>(0.1);
  const auto images = torch::nn::BatchNormOptions(6).momentum(momentum).affine(kind != "bare");
  const auto rows = torch::nn::BatchNormOptions(5).eps(1e-3).momentum(momentum).track_running_stats(kind != "bare");
  Sequential net(torch::nn::Conv2d(2, 6, 3), torch::nn::BatchNorm2d(images), torch::nn::ReLU(), torch::nn::Flatten(),
                 torch::nn::Linear(6 * 4 * 4, 5), torch::nn::BatchNorm1d(rows), torch::nn::Linear(5, 3));
  fill(net);
  return net;
}

Sequential train_normalised(const std::string& kind, const std::string& optimizer_name, bool sharded) {
  Sequential net = normalised_model(kind);
  convert_sync_batchnorm(net);
  DistributedDataParallel<Sequential> ddp(net);
  const auto optimizer = make(optimizer_name, sharded, ddp.parameters());
  const int rank = get_rank();
  for (int step = 0; step < kSyncSteps; ++step) {
    const int count = rank == 1 && step % 3 == 0 ? 0 : 2 + rank;
    optimizer->zero_grad();
    ddp->forward(random({count, 2, 6, 6}, 1000 * step + rank)).square().sum().backward();
    optimizer->step();
  }
  return net;
}

TEST(SyncBatchNormParity, RanksReachTheWeightsOfOneProcess) {
  const test::SharedScratchFolder folder;
  if (::getenv("RANK") == nullptr) {
    test::run_python("sync_batch_norm.py", {std::to_string(kSyncSteps), folder.path("python"), "2", "3"});
  }
  for (const int world : {2, 3}) {
    test::run_processes(world, [&](int) {
      torch::set_num_threads(1);
      const ProcessGroupGuard group;
      for (const std::string optimizer : {"sgd", "adam"}) {
        for (const std::string kind : {"plain", "cumulative", "bare"}) {
          for (const bool sharded : {false, true}) {
            const Sequential net = train_normalised(kind, optimizer, sharded);
            expect_same(net, read(folder.path(fmt::format("python.{}.{}.{}", world, optimizer, kind))),
                        fmt::format("{} ranks, {}, {}{}", world, optimizer, kind, sharded ? ", sharded" : ""));
          }
        }
      }
    });
  }
}

TEST(ZeroRedundancyOptimizerParity, HasPythonsOwnersAndWeights) {
  const test::SharedScratchFolder folder;
  if (::getenv("RANK") == nullptr) {
    test::run_python("zero_redundancy.py", {std::to_string(kSyncSteps), folder.path("python"), "2", "3", "4"});
  }
  for (const int world : {2, 3, 4}) {
    test::run_processes(world, [&](int rank) {
      torch::set_num_threads(1);
      const ProcessGroupGuard group;
      for (const std::string name : {"sgd", "adam", "adamw", "rmsprop", "adagrad"}) {
        using torch::nn::Linear;
        Sequential net(Linear(12, 20), torch::nn::ReLU(), Linear(20, 20), torch::nn::ReLU(), Linear(20, 7),
                       Linear(7, 3));
        fill(net);
        DistributedDataParallel<Sequential> ddp(net);
        std::vector<Tensor> parameters = ddp.parameters();
        const Tensor later = parameters.back();
        parameters.pop_back();
        const auto optimizer = make(name, /*sharded=*/true, parameters);
        torch::optim::OptimizerParamGroup added({later}, optimizer->defaults().clone());
        added.options().set_lr(0.02);
        optimizer->add_param_group(added);
        for (int step = 0; step < kSyncSteps; ++step) {
          optimizer->zero_grad();
          ddp->forward(random({4, 12}, 1000 * step + rank)).square().mean().backward();
          optimizer->step();
        }
        const Tensors expected = read(folder.path(fmt::format("python.{}.{}", world, name)));
        expect_same(net, expected, fmt::format("{} ranks, {}", world, name));
        const auto& zero = dynamic_cast<const ShardedOptimizer&>(*optimizer);
        for (const auto& item : net->named_parameters()) {
          EXPECT_EQ(zero.owner_of(item.value()), expected.at("owner." + item.key()).item<double>())
              << name << ", owner of " << item.key();
        }
      }
    });
  }
}

}  // namespace
}  // namespace lockstep
