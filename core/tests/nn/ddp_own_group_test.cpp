// A wrapper's collectives never meet those of the program or of another wrapper, whatever branches each rank takes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>

#include "lockstep/nn/sync_batch_norm.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    trunk = register_module("trunk", torch::nn::Linear(20, 20));
    left = register_module("left", torch::nn::Linear(20, 20));
    right = register_module("right", torch::nn::Linear(20, 20));
  }
  torch::Tensor forward(const torch::Tensor& x) { return trunk(x); }
  torch::Tensor loss(const torch::Tensor& x, bool right_head) {
    return (right_head ? right : left)(torch::tanh(trunk(x))).square().mean();
  }
  torch::nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(TwoHeads);

// Each parameter has a bucket, and all weights are of one size: what met another bucket was wrong without an error.
const DistributedDataParallelOptions kBucketEach{.bucket_cap_mb = 0.0001};

class DdpOwnGroupMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpOwnGroupMulti, testing::Values(2, 3, 5));

TEST_P(DdpOwnGroupMulti, TwoModelsWithHeadsByRankInOnePass) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    Twins<TwoHeads> generator([] { return TwoHeads(); }, kBucketEach);
    Twins<TwoHeads> discriminator([] { return TwoHeads(); }, kBucketEach);
    for (int step = 0; step < 6; ++step) {
      for (auto* one : {&generator, &discriminator}) {
        one->model->zero_grad();
        one->twin->zero_grad();
      }
      const torch::Tensor x = random_input({4, 20}, step);
      const bool right = (number + step) % 2 == 0;
      // The order of the calls, and with it that of the backward passes, differs too.
      const auto both = [&](auto&& of_generator, auto&& of_discriminator) {
        if (number % 3 == 1) {
          const torch::Tensor second = of_discriminator();
          return of_generator() + second;
        }
        const torch::Tensor first = of_generator();
        return first + of_discriminator();
      };
      both([&] { return generator.ddp->loss(x, right); }, [&] { return discriminator.ddp->loss(x, !right); })
          .backward();
      both([&] { return generator.twin->loss(x, right); }, [&] { return discriminator.twin->loss(x, !right); })
          .backward();
      for (auto* one : {&generator, &discriminator}) {
        average_gradients(one->twin);
        expect_same_gradients(*one->model, *one->twin, fmt::format("step {}", step), {1e-5, 1e-8});
        one->descend();
      }
    }
  });
}

// The features of all ranks, for a contrastive loss. Its gradient is the sum over ranks.
struct Gather : torch::autograd::Function<Gather> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    torch::Tensor all = torch::empty({get_world_size() * x.size(0), x.size(1)});
    all_gather_into_tensor(all, x.contiguous());
    return all;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const torch::Tensor sum = gradients[0].clone();
    all_reduce(sum);
    const std::int64_t rows = sum.size(0) / get_world_size();
    return {sum.narrow(0, get_rank() * rows, rows)};
  }
};

TEST_P(DdpOwnGroupMulti, ADifferentiableCollectiveOfTheProgramsInThePass) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    TwoHeads net;
    DistributedDataParallel<TwoHeads> ddp(net, kBucketEach);
    // Every second rank lets its features pass through a head, so that its buckets start at other times.
    const auto features = [&](TwoHeads::ContainedType& of, const torch::Tensor& x, int of_rank) {
      const torch::Tensor y = torch::tanh(of.forward(x));
      return of_rank % 2 == 0 ? of.left(y) : y;
    };
    for (int step = 0; step < 4; ++step) {
      torch::Tensor expected_loss = torch::zeros({});
      std::vector<torch::Tensor> all;
      for (int of = 0; of < get_world_size(); ++of) all.push_back(features(*net, random_input({3, 20}, step, of), of));
      for (const torch::Tensor& own : all) {
        expected_loss = expected_loss + own.mm(torch::cat(all).t()).logsumexp(1).mean() / get_world_size();
      }
      const std::vector<torch::Tensor> used = {net->trunk->weight, net->trunk->bias, net->left->weight,
                                               net->left->bias};
      const auto expected = torch::autograd::grad({expected_loss}, used);
      net->zero_grad();
      const auto call = ddp.operator->();
      const torch::Tensor own = features(*net, random_input({3, 20}, step), number);
      own.mm(Gather::apply(own).t()).logsumexp(1).mean().backward();
      for (std::size_t i = 0; i < used.size(); ++i) {
        EXPECT_TRUE(torch::allclose(used[i].grad(), expected[i], 1e-4, 1e-6)) << "step " << step << ", tensor " << i;
      }
    }
  });
}

// The program's asynchronous operations are under way while a wrapper, a synchronised layer and a join use the group.
TEST_P(DdpOwnGroupMulti, WhatIsUnderWayInTheGroupOfTheProgramIsLeftAlone) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(20, 20), torch::nn::BatchNorm1d(20), torch::nn::Linear(20, 20));
    convert_sync_batchnorm(*net);
    DistributedDataParallel<torch::nn::Sequential> ddp(net);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor mine = torch::full({400}, number + 1.0);
      Work work;
      if (number % 2 == 0) work = all_reduce_async(mine);
      net->zero_grad();
      ddp->forward(random_input({4, 20}, step)).square().mean().backward();
      if (!work) work = all_reduce_async(mine);
      work->wait();
      const int world = get_world_size();
      EXPECT_EQ(mine.min().item<double>(), world * (world + 1) / 2.0);
      expect_equal_on_all_ranks({net->parameters()[0].grad(), net->parameters()[2].grad()}, "gradient");
    }
  });
}

TEST_P(DdpOwnGroupMulti, WrappersGoInAnyOrderOnTheRanks) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    TwoHeads net;
    for (int round = 0; round < 3; ++round) {
      const ProcessGroup group = round == 1 ? new_group() : nullptr;
      std::vector<std::unique_ptr<DistributedDataParallel<TwoHeads>>> wrappers;
      std::vector<TwoHeads> nets(3);
      for (TwoHeads& one : nets) {
        wrappers.push_back(std::make_unique<DistributedDataParallel<TwoHeads>>(
            one, DistributedDataParallelOptions{.process_group = group}));
        (*wrappers.back())->loss(random_input({4, 20}, round), true).backward();
      }
      if (round == 1) destroy_process_group(group);  // before they go
      for (int i = 0; i < 3; ++i) wrappers[(i + number) % 3].reset();
      if (round == 0) barrier();
    }
  });
}

TEST(DdpOwnGroupErrorsMulti, AnErrorOfEitherGroupReachesWhoWaitsInTheOther) {
  run_processes(3, [](int number) {
    const Rank rank;
    for (const bool aborts : {true, false}) {
      const ProcessGroup group =
          new_group({1, 2}, {.timeout = std::chrono::seconds(aborts ? 60 : 3), .name = aborts ? "first" : "second"});
      if (number == 0) continue;
      TwoHeads net;
      DistributedDataParallel<TwoHeads> ddp(net, {.process_group = group});
      // Not by a barrier of the group, which the abort could meet.
      torch::Tensor made = torch::zeros({1});
      number == 1 ? send(made, 2) : static_cast<void>(recv(made, 1));
      if (number == 1) {
        const std::string text = error_of([&] { ddp->loss(random_input({4, 20}, 0), true).backward(); });
        aborts ? expect_in(text, {"because I say so"})
               : expect_in(text, {"second (DistributedDataParallel)", "rank(s) 2 (", "of the world"});
      } else if (aborts) {
        abort_process_group("because I say so", group);
      } else {
        // Rank 1 gives up, and this rank learns of it at once.
        const std::string text = error_of([&] { barrier({.group = group, .timeout = std::chrono::minutes(10)}); });
        expect_in(text, {"timed out", "second (DistributedDataParallel)"});
      }
      EXPECT_NE(error_of([&] { barrier({.group = group}); }), "no error");
    }
    barrier();
  });
}

}  // namespace
}  // namespace lockstep::test
