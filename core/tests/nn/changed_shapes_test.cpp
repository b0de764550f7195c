// Parameters, gradients and buffers that have changed since the model was wrapped: an error names them before anything
// is copied.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

// A single rank copies nothing.
class DdpChangedShapesMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpChangedShapesMulti, testing::Values(2, 3));

// A scale of any shape, a parameter whose use is optional, and a buffer.
struct ScalesImpl : torch::nn::Module {
  ScalesImpl() {
    scale = register_parameter("scale", torch::ones({4}));
    spare = register_parameter("spare", torch::ones({3}));
    history = register_buffer("history", torch::zeros({2}));
  }
  torch::Tensor forward(bool use_spare = true) {
    const torch::Tensor sum = scale.sum() * 2;
    return use_spare ? sum + spare.sum() : sum;
  }
  void replace_scale(const torch::Tensor& value) { parameters_["scale"] = scale = value.clone().requires_grad_(); }
  torch::Tensor scale, spare, history;
};
TORCH_MODULE(Scales);

// One way to change the model, and the text of the error; empty: no error.
struct Change {
  const char* what;
  std::function<void(Scales&)> make;
  std::vector<std::string> error;
  bool libtorch_may_notice = false;  // LibTorch itself may find that the gradient does not fit
};

std::vector<Change> changes() {
  return {
      {"larger",
       [](Scales& net) {
         net->scale.set_data(torch::ones({300, 4}));
       },
       {"'scale'", "[300, 4]", "Float [4]"}},
      {"as many elements",
       [](Scales& net) {
         net->scale.set_data(torch::ones({2, 2}));
       },
       {"'scale'", "[2, 2]", "[4]"},
       true},
      {"smaller",
       [](Scales& net) { net->scale.set_data(torch::ones({1})); },
       {"'scale'", "Float [1]", "Float [4]"},
       true},
      {"a gradient",
       [](Scales& net) { net->spare.mutable_grad() = torch::ones({9000}); },
       {"gradient of parameter 'spare'", "[9000]", "[3]"}},
      {"a gradient's dtype",
       [](Scales& net) { net->spare.mutable_grad() = torch::ones({3}, torch::kDouble); },
       {"gradient of parameter 'spare'", "Double", "Float"}},
      {"a buffer", [](Scales& net) { net->history.resize_({50000}).zero_(); }, {"buffer 'history'", "[50000]", "[2]"}},
      {"the same shape", [](Scales& net) { net->scale.set_data(torch::full({4}, 5.0)); }, {}},
  };
}

// Changes the model before the forward pass or between it and the backward pass, in the first pass or a later one. Then
// a new wrapper works.
TEST_P(DdpChangedShapesMulti, AreNamedOnEveryRank) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const int steps_before : {0, 2}) {
      for (const bool before_forward : {true, false}) {
        for (const Change& change : changes()) {
          SCOPED_TRACE(fmt::format("{} after {} steps, before forward {}", change.what, steps_before, before_forward));
          Scales net;
          DistributedDataParallel<Scales> ddp(net);
          const auto step = [&](bool with_change) {
            net->zero_grad();
            if (with_change && before_forward) change.make(net);
            const torch::Tensor loss = ddp->forward(/*use_spare=*/!with_change);
            if (with_change && !before_forward) change.make(net);
            loss.backward();
          };
          for (int i = 0; i < steps_before; ++i) step(false);
          const std::string error = error_of([&] { step(true); });
          if (change.error.empty()) {
            EXPECT_EQ(error, "no error");
          } else if (!before_forward && change.libtorch_may_notice && error.find("rank") == std::string::npos) {
            EXPECT_NE(error, "no error");
          } else {
            expect_in(error, change.error);
            expect_in(error, {fmt::format("rank {}", number), "when the model was wrapped"});
          }
        }
      }
    }
    Scales net;
    DistributedDataParallel<Scales> ddp(net);
    ddp->forward().backward();
    EXPECT_TRUE(torch::equal(net->scale.grad(), torch::full({4}, 2.0)));
  });
}

// Parameters that are replaced on all ranks count as new, with any shape: all ranks compare them and get rank 0's
// values.
TEST_P(DdpChangedShapesMulti, ReplacedParametersAreTakenOver) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    Scales net;
    DistributedDataParallel<Scales> ddp(net);
    ddp->forward().backward();
    net->replace_scale(torch::full({2, 5}, number + 1.0));
    ddp->forward(/*use_spare=*/false).backward();
    EXPECT_TRUE(torch::equal(net->scale, torch::ones({2, 5})));
    EXPECT_TRUE(torch::equal(net->scale.grad(), torch::full({2, 5}, 2.0)));
  });
}

// With broadcast_buffers; else each rank keeps its own.
TEST_P(DdpChangedShapesMulti, BuffersThatComeLaterAreSentToo) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    for (const bool sent : {true, false}) {
      torch::nn::Sequential net(torch::nn::Linear(3, 3));
      DistributedDataParallel<torch::nn::Sequential> ddp(net, {.broadcast_buffers = sent});
      const auto pass = [&] { ddp->forward(random_input({2, 3}, 0)).sum().backward(); };
      pass();
      const torch::Tensor late = net->register_buffer("late", torch::full({2}, number + 1.0));
      pass();
      EXPECT_EQ(late[0].item<double>(), sent ? 1.0 : number + 1.0);
      late.fill_(number + 5.0);
      pass();
      EXPECT_EQ(late[0].item<double>(), sent ? 5.0 : number + 5.0);
    }
  });
}

// Only one rank sees the change; it leaves, and the others get an error.
TEST(DdpChangedShapesFault, OnOneRankTheOthersAreNotLeftWaiting) {
  run_processes(3, [](int number) {
    const Rank rank;
    Scales net;
    DistributedDataParallel<Scales> ddp(net);
    ddp->forward().backward();
    if (number == 1) net->scale.set_data(torch::ones({300, 4}));
    const std::string error = error_of([&] { ddp->forward().backward(); });
    expect_in(error, {"rank 1"});
    if (number == 1) expect_in(error, {"'scale'", "[300, 4]"});
  });
}

}  // namespace
}  // namespace lockstep::test
