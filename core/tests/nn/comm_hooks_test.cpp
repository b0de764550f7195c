// Communication hooks: what they send, which group they use, what they do with gradients that are zero or not finite.
// tests/parity/ddp_options_parity_test.cpp compares what they compute with PyTorch.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "lockstep/base/log.h"
#include "lockstep/nn/power_sgd.h"
#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using Net = torch::nn::Sequential;

Net make_net() {
  torch::manual_seed(1);
  return Net(torch::nn::Linear(48, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32), torch::nn::Tanh(),
             torch::nn::Linear(32, 16));
}

void pass(DistributedDataParallel<Net>& ddp, int step) {
  ddp.module()->zero_grad();
  ddp->forward(random_input({4, 48}, step)).square().mean().backward();
}

// Bytes for PowerSGD: matrices that save enough by their factors, the rest as it is.
std::size_t low_rank_bytes(const Net& net, std::int64_t rank, double min_rate) {
  std::int64_t elements = 0;
  for (const torch::Tensor& parameter : net->parameters()) {
    const std::int64_t n = parameter.size(0);
    const std::int64_t m = parameter.numel() / n;
    const std::int64_t compressed = (n + m) * std::min({n, m, rank});
    elements += static_cast<double>(compressed) * min_rate < static_cast<double>(n * m) ? compressed : n * m;
  }
  return static_cast<std::size_t>(elements) * sizeof(float);
}

class CommHooksMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CommHooksMulti, testing::Values(1, 2, 3));

TEST_P(CommHooksMulti, SendTheBytesOfTheory) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    // All sizes are multiples of 64 bytes, so there is no padding.
    const std::size_t whole = (48 * 32 + 32 + 32 * 32 + 32 + 32 * 16 + 16) * sizeof(float);
    const auto expect_sent = [&](std::shared_ptr<CommHook> hook, std::size_t bytes, const std::string& what) {
      for (const double bucket_cap_mb : {25.0, 0.004}) {
        Net net = make_net();
        DistributedDataParallel<Net> ddp(net, {.bucket_cap_mb = bucket_cap_mb});
        ddp.register_comm_hook(hook);
        for (int step = 0; step < 3; ++step) pass(ddp, step);
        EXPECT_EQ(ddp.reducer().sent().last_pass, bytes) << what << ", buckets of " << bucket_cap_mb;
        EXPECT_GE(ddp.reducer().sent().total, 3 * bytes) << what;
      }
    };
    if (get_world_size() > 1) expect_sent(nullptr, whole, "default");
    expect_sent(make_noop_hook(), 0, "noop");
    expect_sent(make_compress_hook(torch::kHalf), whole / 2, "half");
    expect_sent(make_compress_hook(torch::kBFloat16, {.error_feedback = true}), whole / 2, "feedback");
    for (const std::int64_t r : {1, 2, 4}) {
      const PowerSgdOptions options{.matrix_approximation_rank = r, .start_power_sgd_iter = 0};
      const std::size_t bytes = low_rank_bytes(make_net(), r, 2);
      expect_sent(make_power_sgd_hook(options), bytes, fmt::format("PowerSGD {}", r));
      expect_sent(make_compress_wrapper(torch::kBFloat16, make_power_sgd_hook(options)), bytes / 2, "wrapped");
    }
    expect_sent(make_power_sgd_hook({.start_power_sgd_iter = 100}), whole, "before PowerSGD starts");
  });
}

// With a rank as large as the matrices nothing is lost.
TEST_P(CommHooksMulti, PowerSgdOfFullRankIsTheMean) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const PowerSgdOptions options{
        .matrix_approximation_rank = 64, .start_power_sgd_iter = 1, .min_compression_rate = 0.1};
    Twins<Net> twins(make_net, {.bucket_cap_mb = 0.004});
    twins.ddp.register_comm_hook(make_power_sgd_hook(options));
    for (int step = 0; step < 4; ++step) {
      twins.step([x = random_input({4, 48}, step)](Net& net) { return net->forward(x).square().mean(); },
                 fmt::format("step {}", step), {1e-3, 1e-5});
      twins.descend();
    }
  });
}

// Parameters in other orders of memory, without dimensions, empty, frozen later; gradients of zero.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    conv = register_module("conv", torch::nn::Conv2d(16, 32, 3));
    conv->weight.set_data(conv->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    turned = register_parameter("turned", torch::randn({64, 32}).t());
    scale = register_parameter("scale", torch::ones({}));
    empty = register_parameter("empty", torch::ones({0, 5}));
    dead = register_parameter("dead", torch::ones({64, 64}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = conv(x).mean({2, 3}).matmul(turned) * scale;
    return y.square().mean() + empty.sum() + 0 * dead.sum();
  }
  torch::nn::Conv2d conv{nullptr};
  torch::Tensor turned, scale, empty, dead;
};
TORCH_MODULE(Odd);

TEST_P(CommHooksMulti, PowerSgdTakesParametersOfEveryKind) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    torch::manual_seed(1);
    Odd net;
    DistributedDataParallel<Odd> ddp(net, {.bucket_cap_mb = 0.01});
    const PowerSgdOptions options{.matrix_approximation_rank = 2, .start_power_sgd_iter = 0};
    ddp.register_comm_hook(make_power_sgd_hook(options));
    const auto step = [&](int number) {
      net->zero_grad();
      ddp->forward(random_input({2, 16, 6, 6}, number)).backward();
      for (const auto& item : net->named_parameters()) {
        if (!item.value().grad().defined()) continue;
        EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key() << ", step " << number;
        if (item.key() == "dead") {
          EXPECT_EQ(item.value().grad().abs().max().item<double>(), 0);
        }
      }
      std::vector<torch::Tensor> gradients;
      for (const torch::Tensor& parameter : ddp.parameters()) {
        if (parameter.grad().defined()) gradients.push_back(parameter.grad());
      }
      expect_equal_on_all_ranks(gradients, "gradient");
    };
    for (int number = 0; number < 3; ++number) step(number);
    net->turned.requires_grad_(false);  // other buckets
    for (int number = 3; number < 6; ++number) step(number);
  });
}

// A pass whose gradients are zero, as those of unused parameters are, must not make all later ones zero.
TEST_P(CommHooksMulti, PowerSgdGoesOnAfterGradientsOfZeros) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const std::int64_t r : {1, 2, 3}) {
      const PowerSgdOptions options{.matrix_approximation_rank = r, .start_power_sgd_iter = 0};
      Net net = make_net();
      DistributedDataParallel<Net> ddp(net, {.bucket_cap_mb = 0.004});
      ddp.register_comm_hook(make_power_sgd_hook(options));
      for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        const double factor = step == 0 ? 0 : 1;
        (ddp->forward(random_input({4, 48}, step)).square().mean() * factor).backward();
        for (const auto& item : net->named_parameters()) {
          EXPECT_EQ(item.value().grad().abs().max().item<double>() > 0, step > 0)
              << "rank " << r << ": " << item.key() << ", step " << step;
        }
      }
    }
  });
}

// One bad step must not stay in the memory of error feedback.
TEST_P(CommHooksMulti, ForgetGradientsThatWereNotFinite) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const PowerSgdOptions options{.matrix_approximation_rank = 3, .start_power_sgd_iter = 0};
    for (const auto& hook :
         {make_power_sgd_hook(options), make_compress_hook(torch::kHalf, {.error_feedback = true})}) {
      Net net = make_net();
      DistributedDataParallel<Net> ddp(net);
      ddp.register_comm_hook(hook);
      for (int step = 0; step < 5; ++step) {
        net->zero_grad();
        const double factor = step == 2 && number == 0 ? std::numeric_limits<double>::infinity() : 1;
        (ddp->forward(random_input({4, 48}, step)).square().mean() * factor).backward();
        const bool finite = net->parameters()[0].grad().isfinite().all().item<bool>();
        EXPECT_EQ(finite, step != 2) << hook->description() << ", step " << step;
      }
    }
  });
}

// Other parameters in buckets of the same size: what was kept about the old ones is neither added nor used.
TEST_P(CommHooksMulti, ForgetOtherParametersOfTheSameSize) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const PowerSgdOptions options{.matrix_approximation_rank = 1, .start_power_sgd_iter = 0};
    const auto make_hooks = [&] {
      return std::vector<std::shared_ptr<CommHook>>{make_power_sgd_hook(options),
                                                    make_compress_hook(torch::kBFloat16, {.error_feedback = true})};
    };
    for (std::size_t i = 0; i < make_hooks().size(); ++i) {
      torch::manual_seed(1);
      Net net(torch::nn::Linear(48, 16), torch::nn::Linear(16, 48));  // gradients [16, 48] and [48, 16]
      std::vector<torch::Tensor> parameters = net->parameters();
      for (const std::size_t frozen : {1U, 2U, 3U}) parameters[frozen].requires_grad_(false);
      torch::Tensor after_others;
      {
        DistributedDataParallel<Net> ddp(net);
        ddp.register_comm_hook(make_hooks()[i]);
        for (int step = 0; step < 3; ++step) pass(ddp, step);
        parameters[0].requires_grad_(false);
        parameters[2].requires_grad_(true);
        pass(ddp, 3);
        after_others = parameters[2].grad().clone();
      }
      DistributedDataParallel<Net> fresh(net);
      fresh.register_comm_hook(make_hooks()[i]);
      pass(fresh, 3);
      if (i == 1) {
        EXPECT_TRUE(torch::equal(after_others, parameters[2].grad())) << "an error of other parameters was added";
      }
      net->to(torch::kDouble);  // 16 elements fill a cache line in both dtypes
      net->zero_grad();
      fresh->forward(random_input({4, 48}, 4).to(torch::kDouble)).square().mean().backward();
      EXPECT_TRUE(parameters[2].grad().isfinite().all().item<bool>());
    }
  });
}

// Freezing leaves one bucket of several. The others come back later with the same parameters, and begin anew.
TEST_P(CommHooksMulti, ForgetBucketsThatAreNoMore) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const PowerSgdOptions options{.matrix_approximation_rank = 1, .start_power_sgd_iter = 0};
    const auto make_feedback = [] { return make_compress_hook(torch::kBFloat16, {.error_feedback = true}); };
    const DistributedDataParallelOptions several{.bucket_cap_mb = 0.001};
    for (const auto& hook : {make_power_sgd_hook(options), make_feedback()}) {
      const auto buckets = [&] {
        std::set<std::string> numbers;
        for (const auto& [name, tensor] : hook->tensors()) {
          if (name.starts_with("bucket.")) numbers.insert(name.substr(0, name.find('.', 7)));
        }
        return numbers;
      };
      Net net = make_net();
      const std::vector<torch::Tensor> parameters = net->parameters();
      const auto freeze = [&](bool frozen) {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          torch::Tensor parameter = parameters[i];
          if (i != 4) parameter.requires_grad_(!frozen);  // the last weight stays
        }
      };
      torch::Tensor first_again;
      {
        DistributedDataParallel<Net> ddp(net, several);
        ddp.register_comm_hook(hook);
        for (int step = 0; step < 3; ++step) pass(ddp, step);
        EXPECT_GT(buckets().size(), 1U) << hook->description();
        freeze(true);
        pass(ddp, 3);
        EXPECT_EQ(buckets(), (std::set<std::string>{"bucket.0"})) << hook->description();
        freeze(false);
        pass(ddp, 4);
        first_again = parameters[0].grad().clone();
      }
      if (hook->description().find("PowerSGD") != std::string::npos) continue;  // its random numbers go on
      DistributedDataParallel<Net> fresh(net, several);
      fresh.register_comm_hook(make_feedback());
      pass(fresh, 4);
      EXPECT_TRUE(torch::equal(first_again, parameters[0].grad())) << "an error from before was added";
    }
  });
}

TEST(CommHooksErrorsMulti, DifferentHooksAreNamedOnEveryRank) {
  run_processes(3, [](int number) {
    const Rank rank;
    DistributedDataParallel<Net> ddp(make_net());
    const auto error = [&] { return error_of([&] { pass(ddp, 0); }); };
    if (number == 1) ddp.register_comm_hook(make_compress_hook(torch::kHalf));
    expect_in(error(), {fmt::format("rank {}", number), "the same communication hook", "none on rank(s) 0, 2",
                        "compression to Half on rank(s) 1"});
    ddp.register_comm_hook(make_power_sgd_hook({.matrix_approximation_rank = 1 + number / 2}));
    expect_in(error(), {"PowerSGD(matrix_approximation_rank 1", "on rank(s) 0, 1", "matrix_approximation_rank 2"});
    ddp.register_comm_hook(make_noop_hook());
    pass(ddp, 1);
    ddp.register_comm_hook(nullptr);
    pass(ddp, 2);
    expect_equal_on_all_ranks({ddp.parameters()[0].grad()}, "gradient");
  });
}

// Training that stops after some passes, and goes on with a new wrapper and a new hook that has loaded the old one's
// state, has the bits of training that did not stop.
TEST_P(CommHooksMulti, SavedStateContinuesBitForBit) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const PowerSgdOptions low_rank{.matrix_approximation_rank = 2, .start_power_sgd_iter = 2, .random_seed = 5};
    PowerSgdOptions cold = low_rank;
    cold.warm_start = false;
    const std::vector<std::function<std::shared_ptr<CommHook>()>> hooks{
        [&] { return make_power_sgd_hook(low_rank); },
        [&] { return make_power_sgd_hook(cold); },
        [&] { return make_compress_wrapper(torch::kBFloat16, make_power_sgd_hook(low_rank)); },
        [&] { return make_compress_hook(torch::kHalf, {.error_feedback = true}); },
    };
    for (const auto& make : hooks) {
      const auto train = [&](int stop) {
        Net net = make_net();
        std::map<std::string, torch::Tensor> saved;
        int step = 0;
        for (const int end : {stop, 7}) {
          DistributedDataParallel<Net> ddp(net, {.bucket_cap_mb = 0.004, .init_sync = false});
          // A hook that is saved before its first pass has all that it has loaded.
          const std::shared_ptr<CommHook> waiting = make();
          if (!saved.empty()) waiting->load(saved);
          const std::shared_ptr<CommHook> hook = make();
          hook->load(waiting->tensors());
          ddp.register_comm_hook(hook);
          for (; step < end; ++step) {
            pass(ddp, step);
            const torch::NoGradGuard no_grad;
            for (torch::Tensor& parameter : net->parameters()) parameter.sub_(parameter.grad());
          }
          for (const auto& [name, tensor] : hook->tensors()) saved[name] = tensor.clone();
        }
        return net;
      };
      const Net whole = train(7);
      const Net stopped = train(4);
      for (std::size_t i = 0; i < whole->parameters().size(); ++i)
        EXPECT_TRUE(torch::equal(whole->parameters()[i], stopped->parameters()[i]))
            << make()->description() << ' ' << i;
    }
  });
}

TEST(CommHooksErrorsMulti, SavedStateThatDoesNotFitIsNamed) {
  run_processes(2, [](int number) {
    const Rank rank;
    const PowerSgdOptions options{.start_power_sgd_iter = 0};
    std::map<std::string, torch::Tensor> saved;
    {
      DistributedDataParallel<Net> ddp(make_net());
      const auto hook = make_power_sgd_hook(options);
      ddp.register_comm_hook(hook);
      pass(ddp, 0);
      saved = hook->tensors();
    }
    expect_in(error_of([&] { make_noop_hook()->load(saved); }), {"no-op", "keeps nothing", "'bucket.0.error'"});
    expect_in(error_of([&] { make_power_sgd_hook()->load({}); }), {"no 'iteration'", "another hook"});
    expect_in(error_of([&] { make_compress_hook(torch::kHalf, {.error_feedback = true})->load(saved); }),
              {"'bucket.0.q'", "another hook"});
    // On one rank alone.
    DistributedDataParallel<Net> ddp(make_net());
    const auto hook = make_power_sgd_hook(options);
    if (number == 0) hook->load(saved);
    ddp.register_comm_hook(hook);
    expect_in(error_of([&] { pass(ddp, 1); }), {"the same communication hook", "continued from pass 1 on rank(s) 0"});
    // For a model with other shapes: it starts without state.
    std::string logged;
    log::set_output([&](std::string_view line) { logged += line; });
    DistributedDataParallel<Net> other(Net(torch::nn::Linear(48, 40)));
    const auto moved = make_power_sgd_hook(options);
    moved->load(saved);
    other.register_comm_hook(moved);
    pass(other, 0);
    expect_equal_on_all_ranks({other.parameters()[0].grad()}, "gradient");
    log::set_output({});
    expect_in(logged, {"bucket 0 has other parameters", "starts without state"});
  });
}

TEST(CommHooksErrors, WrongOptions) {
  expect_in(error_of([] { make_compress_hook(torch::kFloat); }), {"make_compress_hook", "torch::kHalf", "Float"});
  expect_in(error_of([] { make_compress_wrapper(torch::kHalf, nullptr); }), {"make_compress_wrapper", "null"});
  expect_in(error_of([] { make_power_sgd_hook({.matrix_approximation_rank = 0}); }),
            {"matrix_approximation_rank", "at least 1", "got 0"});
  expect_in(error_of([] { make_power_sgd_hook({.start_power_sgd_iter = -1}); }), {"start_power_sgd_iter", "-1"});
  expect_in(error_of([] { make_power_sgd_hook({.min_compression_rate = 0}); }), {"min_compression_rate", "0"});
}

// A hook without a group of its own uses the wrapper's.
TEST(CommHooksGroupsMulti, UseTheGroupOfTheWrapper) {
  run_processes(3, [](int number) {
    const Rank rank;
    const ProcessGroup pair = new_group({1, 2});
    if (number == 0) return;
    Twins<Net> twins(make_net, {.process_group = pair});
    twins.ddp.register_comm_hook(make_compress_hook(torch::kBFloat16));
    const auto loss = [](Net& net) { return net->forward(random_input({4, 48}, 1)).square().mean(); };
    twins.step(loss, "compressed", {2e-2, 1e-3});
    twins.ddp.register_comm_hook(make_power_sgd_hook({.start_power_sgd_iter = 0}));
    pass(twins.ddp, 2);
    expect_equal_on_all_ranks({twins.ddp.parameters()[0].grad()}, "gradient", pair);
  });
}

// A hook with a group of its own makes the mean over these ranks alone: 0 and 1, and 2 by itself.
TEST(CommHooksGroupsMulti, UseTheirOwnGroup) {
  run_processes(3, [](int number) {
    const Rank rank;
    const ProcessGroup pair = new_group({0, 1});
    const ProcessGroup alone = new_group({2});
    const ProcessGroup mine = number < 2 ? pair : alone;
    // Of full rank, so that nothing is lost.
    const PowerSgdOptions low_rank{.matrix_approximation_rank = 64,
                                   .start_power_sgd_iter = 0,
                                   .min_compression_rate = 0.1,
                                   .use_error_feedback = false,
                                   .group = mine};
    for (const auto& hook : {make_compress_hook(torch::kBFloat16, {.group = mine}), make_power_sgd_hook(low_rank)}) {
      Net net = make_net();
      Net twin = make_net();
      DistributedDataParallel<Net> ddp(net);
      ddp.register_comm_hook(hook);
      for (int step = 0; step < 2; ++step) {
        pass(ddp, step);
        twin->zero_grad();
        twin->forward(random_input({4, 48}, step)).square().mean().backward();
        average_gradients(twin, mine);
        expect_same_gradients(*net, *twin, hook->description(), {2e-2, 1e-3});
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::test
