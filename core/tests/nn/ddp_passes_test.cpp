// Training loops that are more than forward, backward, step.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <thread>

#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

class DdpPassesMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpPassesMulti, testing::Values(1, 2, 4));

struct HeadsImpl : torch::nn::Module {
  HeadsImpl() {
    trunk = register_module("trunk", torch::nn::Linear(200, 300));
    middle = register_module("middle", torch::nn::Linear(300, 300));
    left = register_module("left", torch::nn::Linear(300, 7));
    right = register_module("right", torch::nn::Linear(300, 100));
  }
  torch::Tensor features(const torch::Tensor& x) { return torch::relu(middle(torch::relu(trunk(x)))); }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = features(x);
    return left(y).square().mean() + right(y).square().mean();
  }
  torch::Tensor left_only(const torch::Tensor& x) { return left(features(x)).square().mean(); }
  torch::nn::Linear trunk{nullptr}, middle{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(Heads);

const auto make_heads = [] { return Heads(); };

TEST_P(DdpPassesMulti, SeveralBackwardPasses) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool views : {true, false}) {
      Twins<Heads> twins(make_heads, {.bucket_cap_mb = 0.1, .gradient_as_bucket_view = views});
      const auto whole = [](int step) {
        return [x = random_input({8, 200}, step)](Heads& net) { return net->forward(x); };
      };
      for (int step = 0; step < 3; ++step) {  // two heads, one after the other, over one trunk
        twins.model->zero_grad();
        twins.twin->zero_grad();
        const torch::Tensor x = random_input({8, 200}, step);
        twins.ddp->is_training();
        for (Heads* net : {&twins.model, &twins.twin}) {
          const torch::Tensor y = (*net)->features(x);
          (*net)->left(y).square().mean().backward({}, /*retain_graph=*/true);
          if (net == &twins.twin) average_gradients(twins.twin);
          (*net)->right(y).square().mean().backward();
          if (net == &twins.twin) average_gradients(twins.twin);
        }
        expect_same_gradients(*twins.model, *twins.twin, fmt::format("heads, step {}", step));
        twins.descend();
      }
      twins.accumulate(whole(3), "without zero_grad");
      twins.accumulate(whole(4), "without zero_grad again");
      for (int step = 5; step < 7; ++step) {
        twins.model->zero_grad(/*set_to_none=*/false);
        twins.twin->zero_grad(/*set_to_none=*/false);
        twins.accumulate(whole(step), "zeroed in place");
      }
      // Between passes the user may clip or replace gradients.
      for (Heads* net : {&twins.model, &twins.twin}) {
        torch::nn::utils::clip_grad_norm_((*net)->parameters(), 0.01);
        (*net)->middle->weight.mutable_grad() = torch::ones_like((*net)->middle->weight).t();
        (*net)->left->bias.mutable_grad() = torch::Tensor();
      }
      twins.accumulate(whole(7), "onto gradients of the user's");
      twins.step(whole(8), "afterwards");
      // Evaluation in between, which changes the next pass's allocations.
      for (int step = 9; step < 12; ++step) {
        twins.model->eval();
        {
          const torch::NoGradGuard no_grad;
          for (int i = 0; i < step - 8; ++i) twins.ddp->forward(random_input({8, 200}, step));
        }
        twins.ddp->forward(random_input({8, 200}, step));  // with gradients, never used
        twins.model->train();
        twins.step(whole(step), "after evaluation");
        twins.descend();
      }
    }
  });
}

TEST_P(DdpPassesMulti, AccumulateWithoutSynchronising) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool first_pass_synchronises : {false, true}) {
      Twins<Heads> twins(make_heads);
      if (first_pass_synchronises) {
        twins.step([x = random_input({8, 200}, 99)](Heads& net) { return net->forward(x); }, "first");
      }
      for (int step = 0; step < 3; ++step) {
        twins.model->zero_grad();
        twins.twin->zero_grad();
        {
          const auto guard = twins.ddp.no_sync();
          for (int part = 0; part < 2; ++part) {
            const torch::Tensor x = random_input({8, 200}, 10 * step + part);
            twins.ddp->forward(x).backward();
            twins.twin->forward(x).backward();
          }
          expect_same_gradients(*twins.model, *twins.twin, "own gradients before the ranks meet");
        }
        // The last part does not use `right`, but its sum is sent nevertheless.
        const torch::Tensor x = random_input({8, 200}, 10 * step + 5);
        twins.accumulate([&](Heads& net) { return net->left_only(x); }, fmt::format("step {}", step));
        twins.descend();
      }
    }
  });
}

// A tensor of the backward pass that the user keeps may be in a gradient's slot.
TEST_P(DdpPassesMulti, KeptTensorsKeepTheirValues) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    Twins<Heads> twins(make_heads);
    std::vector<std::pair<torch::Tensor, torch::Tensor>> kept;  // with a copy
    std::set<const void*> places;
    int in_places = 0;
    for (int step = 0; step < 8; ++step) {
      const torch::Tensor x = random_input({300, 200}, step);  // activations as large as weights
      const bool keep = step >= 3 && (step + number) % 2 == 0;
      twins.step(
          [&](Heads& net) {
            if (net.ptr() != twins.model.ptr() || !keep) return net->forward(x);
            // More gradients of the middle weight's size, kept.
            torch::Tensor y = torch::relu(net->middle(torch::relu(net->trunk(x))));
            for (int i = 0; i < 6; ++i) {
              y = y * 1.0;
              y.register_hook([&](const torch::Tensor& gradient) { kept.emplace_back(gradient, gradient.clone()); });
            }
            return net->left(y).square().mean() + net->right(y).square().mean();
          },
          fmt::format("step {}", step));
      for (const auto& [tensor, copy] : kept) {
        in_places += static_cast<int>(places.count(tensor.data_ptr()) + places.count(copy.data_ptr()));
      }
      for (const torch::Tensor& parameter : twins.model->parameters()) places.insert(parameter.grad().data_ptr());
      for (const auto& [tensor, copy] : kept) EXPECT_TRUE(torch::equal(tensor, copy)) << "step " << step;
      twins.descend();
    }
    EXPECT_FALSE(kept.empty());
    if (get_world_size() > 1) {
      EXPECT_GT(in_places, 0) << "no kept tensor lay in a bucket: the test shows nothing";
    }
  });
}

// The gradient of `position` is a view of that of an activation, which `first` needs afterwards. From the second pass
// on both would lie in a bucket that is being reduced already.
struct PositionsImpl : torch::nn::Module {
  PositionsImpl() {
    first = register_module("first", torch::nn::Linear(256, 256));
    last = register_module("last", torch::nn::Linear(256, 256));
    position = register_parameter("position", torch::randn({1, 64, 256}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = first(x);  // before the view, so that its backward pass comes after that of the view
    return last(y + position.view({64, 256})).square().mean();
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::Tensor position;
};
TORCH_MODULE(Positions);

TEST_P(DdpPassesMulti, GradientsThatShareTheMemoryOfOthersLeaveThoseAlone) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Positions> twins([] { return Positions(); }, {.bucket_cap_mb = 0.01});
    for (int step = 0; step < 6; ++step) {
      const torch::Tensor x = random_input({64, 256}, step);
      twins.step([&](Positions& net) { return net->forward(x); }, fmt::format("step {}", step));
      twins.descend();
    }
    if (get_world_size() > 1) {
      EXPECT_EQ(twins.ddp.reducer().placement().in_place, 2U) << "the weights of the two layers";
    }
  });
}

TEST_P(DdpPassesMulti, GoOnAfterAnExceptionOfTheUsers) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Heads> twins(make_heads, {.bucket_cap_mb = 0.01});
    const auto loss = [](int step) {
      return [x = random_input({8, 200}, step)](Heads& net) { return net->forward(x); };
    };
    const auto fail_in_backward = [&](const torch::Tensor& x) {
      twins.model->zero_grad();
      twins.ddp->is_training();
      const torch::Tensor y = torch::relu(twins.model->trunk(x));
      y.register_hook([](const torch::Tensor&) { throw std::runtime_error("the user's own"); });
      const torch::Tensor z = torch::relu(twins.model->middle(y));
      const torch::Tensor sum = twins.model->left(z).square().mean() + twins.model->right(z).square().mean();
      try {
        sum.backward();
        ADD_FAILURE() << "no exception";
      } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find("the user's own"), std::string::npos);
      }
    };
    fail_in_backward(random_input({8, 200}, 100));  // in the very first pass
    for (int step = 0; step < 3; ++step) {
      twins.step(loss(2 * step), fmt::format("step {}", step));
      try {
        twins.ddp->forward(random_input({8, 200}, step));
        throw std::runtime_error("between forward and backward");
      } catch (const std::runtime_error&) {
      }
      fail_in_backward(random_input({8, 200}, 100 + step));
      twins.step(loss(2 * step + 1), fmt::format("after the exceptions of step {}", step));
      twins.descend();
    }
    // The next pass without a forward pass in between.
    twins.model->zero_grad();
    twins.twin->zero_grad();
    const torch::Tensor x = random_input({8, 200}, 7);
    twins.ddp->is_training();
    const torch::Tensor sum = twins.model->forward(x);
    const torch::Tensor bad = twins.model->middle(torch::relu(twins.model->trunk(x)) * 1.0);
    const auto fail = [](const torch::Tensor&) { throw std::runtime_error("the user's own"); };
    torch::Tensor watched = torch::relu(twins.model->trunk(x));
    watched.register_hook(fail);
    EXPECT_THROW(twins.model->middle(watched).sum().backward(), std::runtime_error);
    twins.model->zero_grad();
    sum.backward();
    twins.twin->forward(x).backward();
    average_gradients(twins.twin);
    expect_same_gradients(*twins.model, *twins.twin, "backward after backward that threw");
  });
}

TEST_P(DdpPassesMulti, BackwardInAnotherThread) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Twins<Heads> twins(make_heads);
    for (int step = 0; step < 5; ++step) {
      twins.model->zero_grad();
      twins.twin->zero_grad();
      const torch::Tensor x = random_input({8, 200}, step);
      const torch::Tensor loss = twins.ddp->forward(x);
      if (step % 2 == 0) {
        std::thread([&] { loss.backward(); }).join();
      } else {
        loss.backward();
      }
      twins.twin->forward(x).backward();
      average_gradients(twins.twin);
      expect_same_gradients(*twins.model, *twins.twin, fmt::format("step {}", step),
                            {1e-4, 1e-7});  // another thread may compute with another number of threads
      twins.descend();
    }
  });
}

TEST_P(DdpPassesMulti, SeveralModelsGroupsAndLives) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const auto loss = [](int step) {
      return [x = random_input({8, 200}, step)](Heads& net) { return net->forward(x); };
    };
    {  // two models in turn, with overlapping passes
      Twins<Heads> one(make_heads);
      Twins<Heads> two(make_heads, {.bucket_cap_mb = 0.1});
      for (int step = 0; step < 4; ++step) {
        for (Twins<Heads>* twins : {&one, &two}) {
          twins->model->zero_grad();
          twins->twin->zero_grad();
        }
        const torch::Tensor first = one.ddp->forward(random_input({8, 200}, step));
        const torch::Tensor second = two.ddp->forward(random_input({8, 200}, step + 50));
        (step % 2 == 0 ? first : second).backward();
        (step % 2 == 0 ? second : first).backward();
        one.twin->forward(random_input({8, 200}, step)).backward();
        two.twin->forward(random_input({8, 200}, step + 50)).backward();
        for (Twins<Heads>* twins : {&one, &two}) {
          average_gradients(twins->twin);
          expect_same_gradients(*twins->model, *twins->twin, fmt::format("in turn, step {}", step));
          twins->descend();
        }
      }
    }
    {  // one model, wrapped repeatedly, with kept gradients; every run gives the same bits
      std::vector<torch::Tensor> first_run;
      for (int run = 0; run < 2; ++run) {
        torch::manual_seed(1);
        Heads net;
        torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        for (int life = 0; life < 3; ++life) {
          DistributedDataParallel<Heads> ddp(net);
          for (int step = 0; step < 3; ++step) {
            if (step > 0) optimizer.zero_grad();
            ddp->forward(random_input({8, 200}, 10 * life + step)).backward();
            optimizer.step();
          }
        }
        expect_equal_on_all_ranks(net->parameters(), "parameter");
        for (const torch::Tensor& parameter : net->parameters()) {
          if (run == 0) first_run.push_back(parameter.detach().clone());
        }
        for (std::size_t i = 0; i < first_run.size(); ++i)
          EXPECT_TRUE(torch::equal(net->parameters()[i], first_run[i]));
      }
    }
    if (get_world_size() >= 2 && number >= get_world_size() - 2) {  // the last two ranks also train by themselves
      const ProcessGroup pair = new_group({get_world_size() - 2, get_world_size() - 1});
      Twins<Heads> twins(make_heads, {.process_group = pair});
      for (int step = 0; step < 4; ++step) {
        twins.step(loss(step), fmt::format("pair, step {}", step));
        twins.descend();
      }
      expect_equal_on_all_ranks(twins.model->parameters(), "parameter", pair);
    }
  });
}

// Ranks with 0, 2, 4, ... inputs, or the other way round; two methods called per step; batch normalisation.
struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    first = register_module("first", torch::nn::Linear(20, 300));
    norm = register_module("norm", torch::nn::BatchNorm1d(300));
    last = register_module("last", torch::nn::Linear(300, 5));
  }
  torch::Tensor features(const torch::Tensor& x) { return torch::relu(norm(first(x))); }
  torch::Tensor loss(const torch::Tensor& y) { return last(y).square().mean(); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Normed);

TEST_P(DdpPassesMulti, JoinRanksWithUnevenInputs) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int world = get_world_size();
    torch::manual_seed(1);
    Normed net;
    torch::manual_seed(1);
    Normed twin;
    DistributedDataParallel<Normed> ddp(net);
    for (const bool rank_0_first : {true, false}) {
      const int steps = 2 * (rank_0_first ? number : world - 1 - number);
      ddp.join([&] {
        for (int step = 0; step < steps; ++step) {
          net->zero_grad();
          ddp->loss(ddp->features(random_input({8, 20}, step))).backward();
          const torch::NoGradGuard no_grad;
          for (torch::Tensor& parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
        }
      });
      for (int step = 0; step < 2 * (world - 1); ++step) {
        twin->zero_grad();
        if (step < steps) twin->loss(twin->features(random_input({8, 20}, step))).backward();
        average_gradients(twin);
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : twin->parameters()) parameter.sub_(parameter.grad(), 0.1);
      }
      expect_equal_on_all_ranks(net->parameters(), "parameter");
      expect_equal_on_all_ranks(net->buffers(), "buffer");
      for (std::size_t i = 0; i < twin->parameters().size(); ++i) {
        EXPECT_TRUE(torch::equal(net->parameters()[i], twin->parameters()[i])) << "parameter " << i;
      }
    }
    EXPECT_THROW(ddp.join([] { throw std::runtime_error("the user's own"); }), std::runtime_error);
    ddp.join([] {});
  });
}

}  // namespace
}  // namespace lockstep::test
