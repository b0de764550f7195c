// Activation checkpointing under the wrapper: gradients are those of the model without it, bit for bit, in one pass.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/nn/power_sgd.h"
#include "nn/checkpointed.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;

constexpr int kSegmentWidth = 100;  // large enough that autograd computes gradients in their buckets

// What is checkpointed. `kTail`: all but the first layers, whose gradients come last. `kHead`: all but the last ones.
enum class Way { kNothing, kWhole, kSegments, kNested, kTail, kHead, kFunctional };
constexpr Way kWays[] = {Way::kWhole, Way::kSegments, Way::kNested, Way::kTail, Way::kHead, Way::kFunctional};

// The same function in every way. With `shares`, two segments have one layer in common.
struct SegmentedLayersImpl : torch::nn::Module {
  explicit SegmentedLayersImpl(bool shares) {
    one = register_module("one", torch::nn::Linear(kSegmentWidth, kSegmentWidth));
    two = register_module("two", torch::nn::Linear(kSegmentWidth, kSegmentWidth));
    three = register_module("three", torch::nn::Linear(kSegmentWidth, kSegmentWidth));
    unused = register_module("unused", torch::nn::Linear(kSegmentWidth, kSegmentWidth));
    four = register_module("four", torch::nn::Linear(kSegmentWidth, kSegmentWidth));
    five = shares ? two : register_module("five", torch::nn::Linear(kSegmentWidth, kSegmentWidth));
    six = register_module("six", torch::nn::Linear(kSegmentWidth, 3));
  }

  Tensor front(const Tensor& x) { return begun("front", torch::tanh(two(torch::tanh(one(x))))); }
  Tensor middle(const Tensor& x) { return begun("middle", torch::tanh(four(torch::tanh(three(x))))); }
  Tensor back(const Tensor& x) { return begun("back", six(torch::tanh(five(x)))); }
  Tensor all(const Tensor& x) { return back(middle(front(x))); }
  Tensor segments(const Tensor& x) {
    const Tensor y = checkpoint_reentrant(checkpoint_reentrant(x, front_segment), middle_segment);
    on_tensor(y);
    return checkpoint_reentrant(y, back_segment);
  }
  Tensor without_middle(const Tensor& x, bool checkpointed) {
    const Tensor y =
        checkpointed ? checkpoint_reentrant(checkpoint_reentrant(x, front_segment), back_segment) : back(front(x));
    return y.square().mean();
  }
  Tensor deep(const Tensor& x, int levels) {
    if (levels == 0) return segments(x);
    return checkpoint_reentrant(x, [this, levels](const Tensor& y) { return deep(y, levels - 1); });
  }
  Tensor nested(const Tensor& x) {
    const Segment begin = [this](const Tensor& y) { return middle(checkpoint_reentrant(y, front_segment)); };
    return checkpoint_reentrant(checkpoint_reentrant(x, begin), back_segment);
  }
  Tensor functional(const Tensor& x) {
    const auto of = [](std::vector<torch::nn::Linear> layers) {
      std::vector<Tensor> result;
      for (const auto& layer : layers) result.insert(result.end(), {layer->weight, layer->bias});
      return result;
    };
    const Tensor y = checkpoint_functional(x, of({one, two}), front_segment);
    return checkpoint_functional(checkpoint_functional(y, of({three, four}), middle_segment), of({five, six}),
                                 back_segment);
  }

  Tensor forward(const Tensor& x, Way way) {
    const auto run = [&] {
      switch (way) {
        case Way::kWhole: return checkpoint_reentrant(x, [this](const Tensor& y) { return all(y); });
        case Way::kSegments: return segments(x);
        case Way::kNested: return checkpoint_reentrant(x, [this](const Tensor& y) { return nested(y); });
        case Way::kTail: return checkpoint_reentrant(checkpoint_reentrant(front(x), middle_segment), back_segment);
        case Way::kHead: return back(checkpoint_reentrant(checkpoint_reentrant(x, front_segment), middle_segment));
        case Way::kFunctional: return functional(x);
        default: return all(x);
      }
    };
    return run().square().mean();
  }

  Tensor begun(const std::string& name, Tensor y) {
    before_segment(name);
    return y;
  }

  torch::nn::Linear one{nullptr}, two{nullptr}, three{nullptr}, unused{nullptr}, four{nullptr}, five{nullptr},
      six{nullptr};
  std::function<void(const std::string&)> before_segment = [](const std::string&) {};
  std::function<void(const Tensor&)> on_tensor = [](const Tensor&) {};  // between two segments
  const Segment front_segment = [this](const Tensor& x) { return front(x); };
  const Segment middle_segment = [this](const Tensor& x) { return middle(x); };
  const Segment back_segment = [this](const Tensor& x) { return back(x); };
};
TORCH_MODULE(SegmentedLayers);

Tensor segment_input(int step) {
  return random_input({8, kSegmentWidth}, step);
}

// The wrapped model is checkpointed, and its twin is not.
struct LayerTwins : Twins<SegmentedLayers> {
  explicit LayerTwins(bool shares, DistributedDataParallelOptions options = {})
      : Twins<SegmentedLayers>([shares] { return SegmentedLayers(shares); }, (options.bucket_cap_mb = 0.03, options)) {}

  auto loss(const Tensor& x, Way way) {
    return [this, x, way](SegmentedLayers& net) {
      return net->forward(x, net.ptr() == model.ptr() ? way : Way::kNothing);
    };
  }
  // One pass sends every bucket once.
  std::size_t passes() const {
    const std::size_t bytes = ddp.reducer().bucket_bytes();
    return bytes == 0 ? 0 : ddp.reducer().sent().total / bytes;
  }
  void calls_wrapper_in_segments() {
    model->before_segment = [this](const std::string&) { ddp->is_training(); };
  }
};

std::string text_of(bool shares, bool is_static, Way way, int step) {
  return fmt::format("shares {}, static {}, way {}, step {}", shares, is_static, static_cast<int>(way), step);
}

class DdpCheckpointingMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpCheckpointingMulti, testing::Values(1, 2, 3));

TEST_P(DdpCheckpointingMulti, EveryShapeIsOnePass) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool shares : {false, true}) {
      for (const bool is_static : {false, true}) {
        for (const Way way : kWays) {
          LayerTwins pair(shares, {.static_graph = is_static, .gradient_as_bucket_view = way != Way::kTail});
          if (shares) pair.calls_wrapper_in_segments();
          for (int step = 0; step < 4; ++step) {
            pair.step(pair.loss(segment_input(step), way), text_of(shares, is_static, way, step));
            pair.descend();
          }
          EXPECT_EQ(pair.passes(), get_world_size() == 1 ? 0 : 4) << text_of(shares, is_static, way, 4);
          EXPECT_FALSE(pair.model->unused->weight.grad().defined()) << "unused";
        }
      }
    }
  });
}

// With a parameter in two segments, gradients of earlier passes come into the sum in another order.
Closeness closeness_of_sums(bool shares) {
  return shares ? Closeness{1e-5, 1e-7} : Closeness{};
}

TEST_P(DdpCheckpointingMulti, RanksMayLeaveSegmentsOut) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const bool shares : {false, true}) {
      LayerTwins pair(shares);
      for (int step = 0; step < 6; ++step) {
        const bool all = (step + number) % 3 != 0;
        const Tensor x = segment_input(step);
        pair.step(
            [&](SegmentedLayers& net) {
              const bool checkpointed = net.ptr() == pair.model.ptr();
              if (!all) return net->without_middle(x, checkpointed);
              return net->forward(x, checkpointed ? Way::kSegments : Way::kNothing);
            },
            fmt::format("shares {}, step {}", shares, step));
        pair.descend();
      }
    }
  });
}

TEST_P(DdpCheckpointingMulti, AccumulatesWithoutSynchronising) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool shares : {false, true}) {
      LayerTwins pair(shares, {.static_graph = shares});
      pair.calls_wrapper_in_segments();
      for (int step = 0; step < 3; ++step) {
        pair.model->zero_grad();
        pair.twin->zero_grad();
        {
          const auto guard = pair.ddp.no_sync();
          pair.ddp->forward(segment_input(10 * step), Way::kSegments).backward();
        }
        torch::Tensor later;
        {
          const auto guard = pair.ddp.no_sync();
          later = pair.ddp->forward(segment_input(10 * step + 1), Way::kNested);
        }
        {
          const auto guard = pair.ddp.no_sync();
          later.backward();  // also with segments that call the wrapper again
        }
        for (int part = 0; part < 2; ++part)
          pair.twin->forward(segment_input(10 * step + part), Way::kNothing).backward();
        expect_same_gradients(*pair.model, *pair.twin, "own gradients", closeness_of_sums(shares));
        pair.accumulate(pair.loss(segment_input(10 * step + 2), Way::kWhole), "sum of all", closeness_of_sums(shares));
        pair.descend();
      }
      EXPECT_EQ(pair.passes(), get_world_size() == 1 ? 0 : 3);
    }
  });
}

TEST_P(DdpCheckpointingMulti, SeveralBackwardPassesAndThreads) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    LayerTwins pair(/*shares=*/false, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      pair.model->zero_grad();
      pair.twin->zero_grad();
      const Tensor loss = pair.ddp->forward(segment_input(step), Way::kSegments);
      loss.backward({}, /*retain_graph=*/true);
      std::thread([&] { loss.backward(); }).join();
      const Tensor expected = pair.twin->forward(segment_input(step), Way::kNothing);
      for (const bool retain : {true, false}) {
        expected.backward({}, retain);
        average_gradients(pair.twin);
      }
      // Another thread may compute with another number of threads.
      expect_same_gradients(*pair.model, *pair.twin, fmt::format("step {}", step), {1e-4, 1e-7});
      pair.descend();
    }
    EXPECT_EQ(pair.passes(), get_world_size() == 1 ? 0 : 6);
  });
}

// Writes down when each bucket is started.
struct LoggingHook final : CommHook {
  explicit LoggingHook(std::vector<std::string>& the_log) : log(the_log) {}
  std::function<void()> run(GradBucket& bucket) override {
    log.push_back(fmt::format("bucket {}", bucket.index()));
    auto work = all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG});
    return [work] { work->wait(); };
  }
  std::vector<std::string>& log;
};

// The first bucket has the last layer, and the next one that no earlier segment uses.
TEST_P(DdpCheckpointingMulti, BucketsStartBetweenSegments) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool shares : {false, true}) {
      LayerTwins pair(shares, {.static_graph = true});
      std::vector<std::string> log;
      pair.model->before_segment = [&](const std::string& name) { log.push_back(name); };
      pair.ddp.register_comm_hook(std::make_shared<LoggingHook>(log));
      for (int step = 0; step < 3; ++step) {
        pair.model->zero_grad();
        const Tensor loss = pair.ddp->forward(segment_input(step), Way::kSegments);
        log.clear();
        loss.backward();
        const auto at = [&](const char* what) { return std::find(log.begin(), log.end(), what) - log.begin(); };
        EXPECT_EQ(log.front(), "back");
        EXPECT_EQ(std::count(log.begin(), log.end(), "bucket 0"), 1);
        if (step > 0) {
          EXPECT_LT(at("bucket 0"), at(shares ? "front" : "middle")) << fmt::format("{}", fmt::join(log, ", "));
        }
      }
    }
  });
}

// The parameters after some steps of a wrapped model. The judge of what works without checkpointing.
std::vector<Tensor> trained(Way way, const std::shared_ptr<CommHook>& hook,
                            const std::optional<JoinOptions>& join = std::nullopt) {
  LayerTwins pair(/*shares=*/false, {.static_graph = true});
  pair.calls_wrapper_in_segments();
  if (hook) pair.ddp.register_comm_hook(hook);
  torch::optim::SGD optimizer(pair.ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  const auto loop = [&] {
    for (int step = 0; step < 5 + (join ? 2 * get_rank() : 0); ++step) {
      optimizer.zero_grad();
      pair.ddp.forward(segment_input(step), way).backward();
      optimizer.step();
    }
  };
  try {
    pair.ddp.join(loop, join.value_or(JoinOptions{.enable = false}));
  } catch (const UnevenInputsError&) {
    EXPECT_TRUE(join->throw_on_early_termination);
  }
  return pair.ddp.parameters();
}

TEST_P(DdpCheckpointingMulti, HooksSeeTheSameBuckets) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const std::vector<std::function<std::shared_ptr<CommHook>()>> makers{
        [] { return make_compress_hook(torch::kBFloat16, {.error_feedback = true}); },
        [] { return make_power_sgd_hook({.start_power_sgd_iter = 2}); },
        [] { return make_noop_hook(); },
    };
    for (std::size_t i = 0; i < makers.size(); ++i) {
      const auto expected = trained(Way::kNothing, makers[i]());
      for (const Way way : {Way::kWhole, Way::kSegments, Way::kNested}) {
        expect_same_bits(trained(way, makers[i]()), expected, fmt::format("hook {}", i));
      }
    }
  });
}

TEST_P(DdpCheckpointingMulti, JoinsRanksWithUnevenInputs) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const JoinOptions& options : {JoinOptions{}, JoinOptions{.divide_by_initial_world_size = false},
                                       JoinOptions{.throw_on_early_termination = true}}) {
      const auto expected = trained(Way::kNothing, nullptr, options);
      for (const Way way : {Way::kWhole, Way::kSegments, Way::kTail}) {
        expect_same_bits(trained(way, nullptr, options), expected, "join");
      }
    }
  });
}

TEST_P(DdpCheckpointingMulti, GoesOnAfterAnExceptionOfTheUsers) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    LayerTwins pair(/*shares=*/true, {.static_graph = true});
    const auto fail = [](const auto&) { throw std::runtime_error("the user's own"); };
    const auto nothing = [](const auto&) {};
    const auto fails = [&](const Tensor& loss) {
      EXPECT_THROW(loss.backward(), std::runtime_error);
      pair.model->before_segment = nothing;
      pair.model->on_tensor = nothing;
      pair.model->zero_grad();
    };
    for (int step = 0; step < 3; ++step) {
      Tensor loss = pair.ddp->forward(segment_input(step), Way::kSegments);
      pair.model->before_segment = [&](const std::string& name) {
        if (name == "middle") fail(name);  // while it is computed again
      };
      fails(loss);
      // Between two segments. The next pass has been computed already.
      loss = pair.ddp->forward(segment_input(step), Way::kSegments);
      pair.model->on_tensor = [&](const Tensor& tensor) { tensor.register_hook(fail); };
      fails(pair.model->forward(segment_input(step), Way::kSegments));
      loss.backward();
      pair.twin->zero_grad();
      pair.twin->forward(segment_input(step), Way::kNothing).backward();
      average_gradients(pair.twin);
      expect_same_gradients(*pair.model, *pair.twin, "backward after backward that threw");
      pair.step(pair.loss(segment_input(step), Way::kSegments), "afterwards");
      pair.descend();
    }
  });
}

struct SegmentedNormedImpl : torch::nn::Module {
  SegmentedNormedImpl() {
    one = register_module("one", torch::nn::Linear(4, 6));
    norm_one = register_module("norm_one", torch::nn::BatchNorm1d(6));
    two = register_module("two", torch::nn::Linear(6, 5));
    norm_two = register_module("norm_two", torch::nn::BatchNorm1d(5));
  }
  // Without the layer nobody counts that the running means have changed.
  Tensor forward(const Tensor& x, bool with_head, bool by_layer) {
    const auto normed = [by_layer](torch::nn::BatchNorm1d norm, const Tensor& y) {
      if (by_layer) return norm(y);
      return torch::batch_norm(y, norm->weight, norm->bias, norm->running_mean, norm->running_var, true, 0.1, 1e-5,
                               false);
    };
    const Segment front = [=, this](const Tensor& y) { return normed(norm_one, one(y)); };
    const Segment back = [=, this](const Tensor& y) { return normed(norm_two, two(y)); };
    const Tensor y = checkpoint_reentrant(x, front);
    return (with_head ? back(y) : checkpoint_reentrant(y, back)).pow(3).mean();
  }
  torch::nn::Linear one{nullptr}, two{nullptr};
  torch::nn::BatchNorm1d norm_one{nullptr}, norm_two{nullptr};
};
TORCH_MODULE(SegmentedNormed);

// Running means change while a segment is computed again, which may be after rank 0's have been sent.
TEST_P(DdpCheckpointingMulti, BuffersAreThoseOfRankZero) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const auto& [with_head, by_layer] :
         {std::pair(false, true), std::pair(true, true), std::pair(false, false), std::pair(true, false)}) {
      Twins<SegmentedNormed> twins([] { return SegmentedNormed(); });
      for (int step = 0; step < 3; ++step) {
        const Tensor x = random_input({8, 4}, step);
        const auto loss = [&, head = with_head, layer = by_layer](SegmentedNormed& net) {
          return net->forward(x, head, layer);
        };
        twins.step(loss, "batch normalisation");
        expect_equal_on_all_ranks(twins.model->buffers(),
                                  fmt::format("head {}, layer {}, buffer", with_head, by_layer));
        if (get_rank() == 0) expect_same_bits(twins.model->buffers(), twins.twin->buffers(), "buffer of rank 0");
      }
    }
  });
}

// The gradient of this is a step of a whole training.
struct TrainingInside : torch::autograd::Function<TrainingInside> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const std::function<void()>& step) {
    context->saved_data["step"] = reinterpret_cast<std::int64_t>(&step);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::AutoGradMode with_gradients(true);
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["step"].toInt()))();
    return {gradients[0], Tensor()};
  }
};

TEST_P(DdpCheckpointingMulti, AWholePassInsideAnotherBackwardPassEndsThere) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    LayerTwins pair(/*shares=*/true, {.static_graph = true});
    pair.calls_wrapper_in_segments();
    int step = 0;
    const std::function<void()> take_step = [&] {
      pair.step(pair.loss(segment_input(step), step % 2 == 0 ? Way::kSegments : Way::kHead),
                fmt::format("step {}", step));
      pair.descend();
    };
    for (; step < 6; ++step) {
      if (step % 3 == 2) {
        take_step();
        continue;
      }
      {
        const auto guard = pair.ddp.no_sync();  // this pass has ended then, though it sends nothing
        pair.ddp->forward(segment_input(step), Way::kSegments).backward();
      }
      TrainingInside::apply(torch::ones({1}, torch::requires_grad()), take_step).backward();
    }
  });
}

// LibTorch runs such passes in threads of their own.
TEST_P(DdpCheckpointingMulti, SixtyPassesInsideOneAnother) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    LayerTwins pair(/*shares=*/true);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = segment_input(step);
      pair.step(
          [&](SegmentedLayers& net) {
            if (net.ptr() != pair.model.ptr()) return net->forward(x, Way::kNothing);
            return net->deep(x, torch::autograd::MAX_DEPTH).square().mean();
          },
          "deep", {1e-4, 1e-7});
      pair.descend();
    }
    if (get_world_size() == 1) return;
    expect_in(error_of([&] {
                pair.ddp.join([&] {
                  for (int step = 0; step <= number; ++step) {
                    pair.model->zero_grad();
                    pair.ddp->deep(segment_input(step), torch::autograd::MAX_DEPTH).sum().backward();
                  }
                });
              }),
              {"join: expected one pass that sends", "checkpointing", "throw_on_early_termination"});
  });
}

TEST(DdpCheckpointingErrorsMulti, NameTheParameters) {
  run_processes(2, [](int number) {
    const Rank rank;
    LayerTwins promised(/*shares=*/false, {.static_graph = true});
    const auto pass = [](LayerTwins& pair, Way way) {
      pair.model->zero_grad();
      pair.ddp->forward(segment_input(0), way).backward();
    };
    pass(promised, Way::kSegments);
    pass(promised, Way::kNested);  // the same parameters
    promised.model->zero_grad();
    expect_in(error_of([&] { promised.ddp->without_middle(segment_input(0), /*checkpointed=*/true).backward(); }),
              {fmt::format("rank {}", number), "static_graph", "'four.bias' (used in the first pass, not now)"});
    // Twice in a pass, and once in the first one. An error in PyTorch too.
    LayerTwins sharing(/*shares=*/true);
    pass(sharing, Way::kNothing);
    expect_in(error_of([&] { pass(sharing, Way::kSegments); }),
              {fmt::format("rank {}", number), "parameter 'two.", "received 2 gradients in one backward pass",
               "checkpointing", "make the first pass do the same"});
  });
}

}  // namespace
}  // namespace lockstep::test
