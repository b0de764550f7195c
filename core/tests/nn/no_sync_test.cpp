// Which passes send, while guards of no_sync come and go.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>

#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

class DdpNoSyncMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpNoSyncMulti, testing::Values(1, 3));

using Chain = torch::nn::Sequential;

Chain make_chain() {
  return Chain(torch::nn::Linear(30, 20), torch::nn::Tanh(), torch::nn::Linear(20, 3));
}

torch::Tensor loss_of(Chain& net, const torch::Tensor& x) {
  return net->forward(x).square().mean();
}

// What the program has done with the wrapper before.
enum class Before { kNothing, kPassInside, kCallInside, kCallOutside };

void do_before(Before before, DistributedDataParallel<Chain>& ddp, const torch::Tensor& x) {
  std::optional<NoSyncGuard> guard;
  if (before == Before::kPassInside || before == Before::kCallInside) guard = ddp.no_sync();
  if (before == Before::kPassInside) ddp->forward(x).sum().backward();
  if (before == Before::kCallInside || before == Before::kCallOutside) ddp->train();
}

// PyTorch sends too where only the backward pass is inside, and not where only the forward pass is.
TEST_P(DdpNoSyncMulti, APassSendsNothingIfItIsInsideTheGuard) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Chain> twins(make_chain);
    int step = 0;
    for (const Before before : {Before::kNothing, Before::kPassInside, Before::kCallInside, Before::kCallOutside}) {
      for (int which = 0; which < 8; ++which, ++step) {
        const bool forward_inside = (which & 1) != 0, backward_inside = (which & 2) != 0, by_module = (which & 4) != 0;
        const torch::Tensor x = random_input({4, 30}, step);
        do_before(before, twins.ddp, x);
        twins.model->zero_grad();
        twins.twin->zero_grad();
        std::optional<NoSyncGuard> guard;
        if (forward_inside) guard = twins.ddp.no_sync();
        const torch::Tensor loss = by_module ? loss_of(twins.ddp.module(), x) : twins.ddp.forward(x).square().mean();
        if (!backward_inside) guard.reset();
        if (backward_inside && !guard) guard.emplace(twins.ddp.no_sync());
        loss.backward();
        loss_of(twins.twin, x).backward();
        // A forward pass through module() is not seen, unless a call of the wrapper could have been its beginning.
        const bool seen = !by_module || before == Before::kCallOutside;
        if (!backward_inside || (seen && !forward_inside)) average_gradients(twins.twin);
        expect_same_gradients(*twins.model, *twins.twin,
                              fmt::format("before {}, which {}", static_cast<int>(before), which));
      }
    }
  });
}

// Else the rank would send alone, and be a pass ahead of the others from then on.
TEST_P(DdpNoSyncMulti, AResultThatOneRankKeepsIsAnErrorOnAllRanks) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool evaluates : {false, true}) {
      Twins<Chain> twins(make_chain);
      torch::Tensor kept;
      twins.ddp->train(!evaluates);
      if (get_rank() == 0) kept = twins.ddp->forward(random_input({4, 30}, 0));
      const auto pass = [&] { twins.ddp->forward(random_input({4, 30}, 1)).square().mean().backward(); };
      const std::string error = error_of([&] {
        {
          const auto guard = twins.ddp.no_sync();
          pass();
        }
        pass();
      });
      const bool differ = error.find("this one is under no_sync on some ranks") != std::string::npos;
      EXPECT_EQ(differ, get_world_size() > 1) << error;
    }
  });
}

// Only the earlier forward pass has a graph, and its backward pass is over.
TEST_P(DdpNoSyncMulti, ACallOutsideIsNoForwardPassWhileAnOldResultLives) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Chain> twins(make_chain);
    const torch::Tensor old = twins.ddp->forward(random_input({4, 30}, 0)).square().mean();
    old.backward();
    twins.model->zero_grad();
    twins.ddp->train();
    const torch::Tensor x = random_input({4, 30}, 1);
    const auto guard = twins.ddp.no_sync();
    twins.ddp->forward(x).square().mean().backward();
    loss_of(twins.twin, x).backward();
    expect_same_gradients(*twins.model, *twins.twin, "not averaged");
  });
}

// One backward pass of two forward passes. The guard also begins while the result of an earlier step lives.
TEST_P(DdpNoSyncMulti, APassSendsIfOneOfItsForwardPassesIsOutside) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Chain> twins(make_chain);
    torch::Tensor loss;
    for (int which = 0; which < 16; ++which) {
      twins.model->train(which < 8);
      twins.model->zero_grad();
      twins.twin->zero_grad();
      const torch::Tensor x = random_input({4, 30}, 2 * which), y = random_input({4, 30}, 2 * which + 1);
      std::optional<NoSyncGuard> guard;
      const auto forward = [&](const torch::Tensor& input, bool inside) {
        guard.reset();
        if (inside) guard.emplace(twins.ddp.no_sync());
        return twins.ddp->forward(input).square().mean();
      };
      const torch::Tensor first = forward(x, (which & 1) != 0);
      loss = first + forward(y, (which & 2) != 0);
      guard.reset();
      if ((which & 4) != 0) guard.emplace(twins.ddp.no_sync());
      loss.backward();
      guard.reset();
      (loss_of(twins.twin, x) + loss_of(twins.twin, y)).backward();
      if ((which & 7) != 7) average_gradients(twins.twin);
      expect_same_gradients(*twins.model, *twins.twin, fmt::format("which {}", which));
    }
  });
}

// Only the other ranks have had a backward pass since the forward pass outside. All must take it as over.
TEST_P(DdpNoSyncMulti, AForwardPassIsOverWithAPassWithoutInput) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool by_module : {false, true}) {
      Twins<Chain> twins(make_chain);
      const torch::Tensor x = random_input({4, 30}, 0);
      const torch::Tensor unused = twins.ddp->forward(x);
      const bool has_input = get_rank() + 1 < get_world_size();
      if (has_input) {
        twins.ddp->forward(x).square().mean().backward();
      } else {
        twins.ddp.pass_without_input();
      }
      (loss_of(twins.twin, x) * (has_input ? 1 : 0)).backward();
      average_gradients(twins.twin);
      {
        const auto guard = twins.ddp.no_sync();
        (by_module ? loss_of(twins.ddp.module(), x) : twins.ddp->forward(x).square().mean()).backward();
      }
      loss_of(twins.twin, x).backward();
      expect_same_gradients(*twins.model, *twins.twin, fmt::format("by module {}", by_module));
    }
  });
}

TEST_P(DdpNoSyncMulti, TheUsualLoopSendsWithItsLastPart) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool by_module : {false, true}) {
      Twins<Chain> twins(make_chain);
      for (int step = 0; step < 3; ++step) {
        twins.model->zero_grad();
        twins.twin->zero_grad();
        for (int part = 0; part < 3; ++part) {
          const torch::Tensor x = random_input({4, 30}, 3 * step + part);
          const auto guard = twins.ddp.no_sync(part < 2);
          (by_module ? loss_of(twins.ddp.module(), x) : twins.ddp->forward(x).square().mean()).backward();
          loss_of(twins.twin, x).backward();
        }
        average_gradients(twins.twin);
        expect_same_gradients(*twins.model, *twins.twin, fmt::format("by module {}, step {}", by_module, step));
        twins.descend();
      }
    }
  });
}

TEST_P(DdpNoSyncMulti, GuardsCountAndMayOutliveTheWrapper) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    std::optional<NoSyncGuard> first, second;
    {
      Twins<Chain> twins(make_chain);
      const torch::Tensor x = random_input({4, 30}, 0);
      first = twins.ddp.no_sync();
      second = twins.ddp.no_sync();
      first.reset();
      twins.ddp->forward(x).square().mean().backward();
      loss_of(twins.twin, x).backward();
      expect_same_gradients(*twins.model, *twins.twin, "the second guard lives");
    }
    second.reset();
  });
}

}  // namespace
}  // namespace lockstep::test
