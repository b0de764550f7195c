// Several wrappers that reduce one parameter: two models around one encoder, one net wrapped twice, a wrapper inside a
// wrapper. Every rank also computes the gradients of all ranks, with LibTorch alone.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>

#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

// The encoder's weight and bias have slots in buckets of their own.
constexpr std::int64_t kEncoded = 256;

struct CoderImpl : torch::nn::Module {
  explicit CoderImpl(torch::nn::Linear of) {
    encoder = register_module("encoder", std::move(of));
    head = register_module("head", torch::nn::Linear(kEncoded, kEncoded));
  }
  torch::Tensor forward(const torch::Tensor& x, bool head_only = false) {
    return head(head_only ? x : torch::relu(encoder(x))).square().mean();
  }
  torch::nn::Linear encoder{nullptr}, head{nullptr};
};
TORCH_MODULE(Coder);

struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(Coder of) {
    inner = register_module("inner", std::move(of));
    last = register_module("last", torch::nn::Linear(kEncoded, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return inner->forward(x) + last(torch::relu(inner->encoder(x))).square().mean();
  }
  Coder inner{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Outer);

torch::nn::Linear make_encoder() {
  torch::manual_seed(3);
  return torch::nn::Linear(kEncoded, kEncoded);
}

std::vector<torch::Tensor> mean_of_ranks(const std::function<torch::Tensor(int rank)>& loss,
                                         const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> sums;
  for (int rank = 0; rank < get_world_size(); ++rank) {
    const auto own = torch::autograd::grad({loss(rank)}, parameters, {}, false, false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const torch::Tensor one = own[i].defined() ? own[i] : torch::zeros_like(parameters[i]);
      rank == 0 ? sums.push_back(one.clone()) : static_cast<void>(sums[i] += one);
    }
  }
  for (torch::Tensor& sum : sums) sum /= get_world_size();
  return sums;
}

void expect_gradients(const std::vector<torch::Tensor>& parameters, const std::vector<torch::Tensor>& expected,
                      const std::string& where) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    ASSERT_TRUE(parameters[i].grad().defined()) << where << ", parameter " << i;
    EXPECT_TRUE(torch::allclose(parameters[i].grad(), expected[i], 1e-4, 1e-7))
        << where << ", parameter " << i << " is off by up to "
        << (parameters[i].grad() - expected[i]).abs().max().item<double>();
  }
}

class DdpSharedParametersMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpSharedParametersMulti, testing::Values(2, 3));

// Every cap closes buckets at other parameters. A view of the first wrapper's bucket was what the second one read.
TEST_P(DdpSharedParametersMulti, TwoModelsAroundOneEncoder) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool views : {true, false}) {
      for (const double cap : {25.0, 0.3, 0.001}) {
        for (const bool is_static : {false, true}) {
          const DistributedDataParallelOptions options{
              .bucket_cap_mb = cap, .static_graph = is_static, .gradient_as_bucket_view = views};
          const torch::nn::Linear encoder = make_encoder();
          Coder actor(encoder);
          Coder critic(encoder);
          DistributedDataParallel<Coder> one(actor, options);
          DistributedDataParallel<Coder> two(critic, options);
          std::vector<torch::Tensor> all = actor->parameters();
          for (const torch::Tensor& parameter : critic->head->parameters()) all.push_back(parameter);
          std::vector<torch::Tensor> sums;
          for (int step = 0; step < 8; ++step) {
            const auto input = [&](int of) { return random_input({8, kEncoded}, step, of); };
            const auto mean =
                mean_of_ranks([&](int of) { return actor->forward(input(of)) + 2 * critic->forward(input(of)); }, all);
            if (step % 3 == 0) {  // otherwise they add up
              actor->zero_grad();
              critic->zero_grad();
              sums = mean;
            } else {
              for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] + mean[i];
            }
            const torch::Tensor x = input(get_rank());
            if (step == 5 && !is_static) {  // one after the other
              const torch::Tensor first = one->forward(x);
              const torch::Tensor second = 2 * two->forward(x);
              first.backward();
              second.backward();
            } else {
              (one->forward(x) + 2 * two->forward(x)).backward();
            }
            expect_gradients(all, sums,
                             fmt::format("views {}, cap {}, static {}, step {}", views, cap, is_static, step));
          }
        }
      }
    }
  });
}

// The exception leaves a pass of both. The next pass calls one of them, and a collective of the program's own lies
// before the first gradient on rank 0, behind it on the others.
TEST_P(DdpSharedParametersMulti, AfterAnExceptionWithACollectiveOfTheProgram) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const torch::nn::Linear encoder = make_encoder();
    Coder actor(encoder);
    Coder critic(encoder);
    DistributedDataParallel<Coder> one(actor);
    DistributedDataParallel<Coder> two(critic);
    const torch::Tensor x = random_input({8, kEncoded}, 1);
    (one->forward(x) + two->forward(x)).backward();  // builds the buckets
    {
      const torch::Tensor loss = one->forward(x);
      loss.register_hook([](const torch::Tensor&) { throw std::runtime_error("the program's own"); });
      EXPECT_THROW((loss + two->forward(x)).backward(), std::runtime_error);
    }
    actor->zero_grad();
    critic->zero_grad();
    const bool first = get_rank() == 0;
    torch::Tensor loss = one->forward(x);
    torch::Tensor sum = torch::full({}, 1.0);
    const auto communicate = [&](const torch::Tensor&) { all_reduce(sum); };
    if (first) {
      loss.register_hook(communicate);
    } else {
      encoder->weight.register_hook(communicate);
    }
    loss.backward();
    EXPECT_EQ(sum.item<double>(), get_world_size());
    expect_equal_on_all_ranks({encoder->weight.grad(), actor->head->weight.grad()}, "gradient");
  });
}

// The two take turns. A rank may use the head alone.
TEST_P(DdpSharedParametersMulti, TakeTurnsWithBranchesByRank) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool views : {true, false}) {
      const torch::nn::Linear encoder = make_encoder();
      Coder actor(encoder);
      Coder critic(encoder);
      const DistributedDataParallelOptions options{.bucket_cap_mb = 0.001, .gradient_as_bucket_view = views};
      DistributedDataParallel<Coder> one(actor, options);
      DistributedDataParallel<Coder> two(critic, options);
      for (int step = 0; step < 6; ++step) {
        Coder& net = step % 2 == 0 ? actor : critic;
        const auto loss = [&](int of) {
          return net->forward(random_input({8, kEncoded}, step, of), /*head_only=*/(step + of) % 3 == 0);
        };
        actor->zero_grad();
        critic->zero_grad();
        const auto expected = mean_of_ranks(loss, net->parameters());
        auto& wrapper = step % 2 == 0 ? one : two;
        wrapper->forward(random_input({8, kEncoded}, step), (step + get_rank()) % 3 == 0).backward();
        expect_gradients(net->parameters(), expected, fmt::format("views {}, step {}", views, step));
        Coder& other = step % 2 == 0 ? critic : actor;
        EXPECT_FALSE(other->head->weight.grad().defined());
      }
    }
  });
}

// What decides is what the backward pass reaches, not which wrapper was called, when, or in which mode.
TEST_P(DdpSharedParametersMulti, MayBeCalledInAnyWay) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const torch::nn::Linear encoder = make_encoder();
    Coder actor(encoder);
    Coder critic(encoder);
    DistributedDataParallel<Coder> one(actor);
    DistributedDataParallel<Coder> two(critic);
    std::vector<torch::Tensor> all = actor->parameters();
    for (const torch::Tensor& parameter : critic->head->parameters()) all.push_back(parameter);
    int step = 0;
    const auto input = [&](int of) { return random_input({8, kEncoded}, step, of); };
    const auto expect = [&](const char* where, const std::function<void(const torch::Tensor&)>& pass,
                            const std::function<torch::Tensor(int)>& loss) {
      for (int i = 0; i < 2; ++i, ++step) {
        actor->zero_grad();
        critic->zero_grad();
        const auto mean = mean_of_ranks(loss, all);
        pass(input(number));
        expect_gradients(all, mean, where);
      }
    };
    const auto head_only = [](int of) { return of == 0; };  // of the critic, on rank 0
    const auto sum = [&](int of) {
      return actor->forward(input(of)) + critic->forward(input(of), head_only(of)) + 0 * critic->forward(input(of));
    };
    const auto two_losses = [&](const torch::Tensor& x) {
      return two->forward(x, head_only(number)) + 0 * two->forward(x);
    };
    expect(
        "one expression each",
        [&](const torch::Tensor& x) {
          one->forward(x).backward();
          two_losses(x).backward();
        },
        sum);
    expect(
        "through module()",
        [&](const torch::Tensor& x) {
          (one->forward(x) + actor->forward(x) * 0 + sum(number) - actor->forward(x)).backward();
        },
        sum);
    critic->eval();
    expect(
        "in eval mode", [&](const torch::Tensor& x) { (one->forward(x) + two_losses(x)).backward(); }, sum);
    critic->train();
    expect(
        "a pass of one between",
        [&](const torch::Tensor& x) {
          const torch::Tensor later = two_losses(x);
          one->forward(x).backward();
          later.backward();
        },
        sum);
    expect(
        "with guards of both",
        [&](const torch::Tensor& x) {
          {
            const NoSyncGuard guards[] = {one.no_sync(), two.no_sync()};
            for (int part = 0; part <= number; ++part) (0 * two->forward(x)).backward();
            one->forward(x).backward();
          }
          two_losses(x).backward();
        },
        sum);
    {
      const NoSyncGuard guard = one.no_sync();
      expect_in(error_of([&] { two_losses(input(number)).backward(); }), {"1 of 2 wrappers", "no_sync"});
    }
    actor->to(torch::kDouble);
    critic->to(torch::kDouble);
    actor->zero_grad();
    one->forward(input(number).to(torch::kDouble)).backward();  // before `two` knows
  });
}

// The first pass of the second wrapper leaves the embedding out, so there it is dense.
TEST_P(DdpSharedParametersMulti, MayBeSparseInOneOfThem) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::manual_seed(3);
    struct NetImpl : torch::nn::Module {
      explicit NetImpl(torch::nn::Embedding of) {
        embedding = register_module("embedding", std::move(of));
        head = register_module("head", torch::nn::Linear(4, 1));
      }
      torch::Tensor forward(const torch::Tensor& rows, bool detached = false) {
        return head(detached ? embedding(rows).detach() : embedding(rows)).square().sum();
      }
      torch::nn::Embedding embedding{nullptr};
      torch::nn::Linear head{nullptr};
    };
    using Net = torch::nn::ModuleHolder<NetImpl>;
    const torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    Net first{table};
    Net second{table};
    DistributedDataParallel<Net> one(first);
    DistributedDataParallel<Net> two(second);
    for (int step = 0; step < 3; ++step) {
      const auto rows = [&](int of) { return torch::tensor({of, 5 + step, step}, torch::kLong); };
      torch::Tensor mean = torch::zeros({10, 4});
      for (int of = 0; of < get_world_size(); ++of) {
        const torch::Tensor loss = first->forward(rows(of)) + second->forward(rows(of), step == 0);
        mean += torch::autograd::grad({loss}, {table->weight})[0].to_dense() / get_world_size();
      }
      first->zero_grad();
      second->zero_grad();
      (one->forward(rows(number)) + two->forward(rows(number), step == 0)).backward();
      EXPECT_TRUE(torch::allclose(table->weight.grad().to_dense(), mean, 1e-4, 1e-6)) << step;
    }
  });
}

TEST_P(DdpSharedParametersMulti, OneNetWrappedTwiceAndAWrapperInsideAWrapper) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    for (const bool views : {true, false}) {
      Coder net(make_encoder());
      const DistributedDataParallelOptions options{.bucket_cap_mb = 0.3, .gradient_as_bucket_view = views};
      std::optional<DistributedDataParallel<Coder>> one(std::in_place, net, options);
      const auto step_of = [&](auto& wrapper, auto& model, int step, const std::string& where) {
        model->zero_grad();
        const auto loss = [&](int of) { return model->forward(random_input({8, kEncoded}, step, of)); };
        const auto expected = mean_of_ranks(loss, model->parameters());
        wrapper->forward(random_input({8, kEncoded}, step)).backward();
        expect_gradients(model->parameters(), expected, fmt::format("{}, views {}, step {}", where, views, step));
      };
      for (int step = 0; step < 3; ++step) step_of(*one, net, step, "alone");
      std::optional<DistributedDataParallel<Coder>> two(std::in_place, net,
                                                        options);  // gradients lie in buckets of one
      for (int step = 3; step < 6; ++step) step_of(step % 2 == 0 ? *one : *two, net, step, "twice");
      Outer outer(net);
      {
        DistributedDataParallel<Outer> around(outer, options);
        for (int step = 6; step < 9; ++step) step_of(around, outer, step, "inside another");
        for (int step = 9; step < 11; ++step) step_of(*two, net, step, "inner alone");
      }
      one.reset();
      for (int step = 11; step < 14; ++step) step_of(*two, net, step, "alone again");
    }
  });
}

TEST(DdpSharedParametersErrorsMulti, OtherRanksAreRefusedOnEveryRank) {
  run_processes(3, [](int number) {
    const Rank rank;
    Coder actor(make_encoder());
    Coder critic(actor->encoder);
    const ProcessGroup pair = new_group({0, 1});
    if (number < 2) {
      DistributedDataParallel<Coder> one(actor, {.process_group = pair});
      expect_in(error_of([&] { DistributedDataParallel<Coder> two(critic); }),
                {"'encoder.weight' is wrapped already in a group of other ranks (0, 1, here 0, 1, 2)"});
    } else {
      expect_in(error_of([&] { DistributedDataParallel<Coder> two(critic); }),
                {"rank(s) 0, 1 cannot take part", "'encoder.weight'"});
    }
    DistributedDataParallel<Coder> two(critic);  // the group works
    DistributedDataParallel<Coder> one(actor);
    expect_in(error_of([&] { one.join([] {}); }), {"join", "'encoder.weight' is wrapped twice"});
  });
}

}  // namespace
}  // namespace lockstep::test
