// The interface of the wrapper: modules in every form, any method as training step, communication hooks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "nn/error_texts.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

class DdpInterfaceMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, DdpInterfaceMulti, testing::Values(1, 2, 3));

struct SmallImpl : torch::nn::Module {
  SmallImpl() {
    first = register_module("first", torch::nn::Linear(20, 500));
    last = register_module("last", torch::nn::Linear(500, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(first(x))).square().mean(); }
  std::pair<torch::Tensor, int> training_step(const torch::Tensor& x, int batch) { return {forward(x), batch + 1}; }
  const std::string& name_of(std::unique_ptr<std::string> name) { return kept = *name; }
  torch::nn::Linear first{nullptr}, last{nullptr};
  std::string kept;
};
TORCH_MODULE(Small);

static_assert(!std::is_copy_constructible_v<DistributedDataParallel<Small>>);
static_assert(!std::is_move_constructible_v<DistributedDataParallel<Small>>);

template <typename Net>
DistributedDataParallel<Net> wrap(Net net) {
  return DistributedDataParallel<Net>(std::move(net));
}

TEST_P(DdpInterfaceMulti, TakesModulesInEveryForm) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    torch::manual_seed(number);
    auto by_holder = wrap(Small());
    auto by_pointer = wrap(std::make_shared<SmallImpl>());
    auto by_value = wrap(SmallImpl());
    DistributedDataParallel deduced(Small(), {.bucket_cap_mb = 1});
    static_assert(std::is_same_v<decltype(deduced)::Module, SmallImpl>);
    static_assert(std::is_same_v<decltype(by_pointer)::Module, SmallImpl>);
    static_assert(std::is_same_v<decltype(by_value)::Module, SmallImpl>);
    static_assert(std::is_same_v<decltype(by_value.module()), SmallImpl&>);
    static_assert(std::is_same_v<decltype(by_holder.module()), Small&>);

    const torch::Tensor x = random_input({4, 20}, 0);
    const auto check = [&](auto& ddp, const char* what) {
      for (int pass = 0; pass < 3; ++pass) {
        for (torch::Tensor& parameter : ddp.parameters()) parameter.mutable_grad() = torch::Tensor();
        if (pass == 0) ddp.forward(x).backward();
        if (pass == 1) ddp(x).backward();
        if (pass == 2) {
          auto [loss, next] = ddp->training_step(x, 7);
          EXPECT_EQ(next, 8);
          loss.backward();
        }
        std::vector<torch::Tensor> gradients;
        for (const torch::Tensor& parameter : ddp.parameters()) gradients.push_back(parameter.grad());
        expect_equal_on_all_ranks(gradients, what);
      }
      expect_equal_on_all_ranks(ddp.parameters(), what);
      const std::string& name = ddp->name_of(std::make_unique<std::string>("moved and returned by reference"));
      EXPECT_EQ(&name, &ddp->kept);
    };
    check(by_holder, "holder");
    check(by_pointer, "shared_ptr");
    check(by_value, "value");
    check(deduced, "deduced");
    EXPECT_EQ(by_value.module().named_parameters().keys().front(), "first.weight") << "no prefix";
  });
}

// As in the comment of comm_hook.h.
struct ScaledHook final : CommHook {
  std::function<void()> run(GradBucket& bucket) override {
    auto work = all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG});
    return [work, &bucket] {
      work->wait();
      bucket.buffer().mul_(0.5);
    };
  }
};

// Returns its result in another tensor, of another dtype; uses every method of the bucket.
struct ReplacingHook final : CommHook {
  std::function<void()> run(GradBucket& bucket) override {
    EXPECT_EQ(bucket.index(), next++);
    if (bucket.is_last()) next = 0;
    EXPECT_EQ(bucket.parameters().size(), bucket.gradients().size());
    for (std::size_t i = 0; i < bucket.parameters().size(); ++i) {
      EXPECT_EQ(bucket.parameters()[i].sizes(), bucket.gradients()[i].sizes());
      EXPECT_EQ(bucket.gradients()[i].storage().data(), bucket.buffer().storage().data());
    }
    bucket.buffer() = bucket.buffer().to(torch::kDouble);
    all_reduce(bucket.buffer(), {.op = c10d::ReduceOp::AVG});
    return nullptr;
  }
  std::size_t next = 0;
};

TEST_P(DdpInterfaceMulti, RunsCommunicationHooks) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    const auto train = [](std::shared_ptr<CommHook> hook, double factor, const Closeness& closeness, const char* what) {
      Twins<Small> twins([] { return Small(); }, {.bucket_cap_mb = 0.02});
      twins.ddp.register_comm_hook(std::move(hook));
      for (int step = 0; step < 4; ++step) {
        const torch::Tensor x = random_input({4, 20}, step);
        twins.model->zero_grad();
        twins.twin->zero_grad();
        twins.ddp->forward(x).backward();
        (twins.twin->forward(x) * factor).backward();
        average_gradients(twins.twin);
        expect_same_gradients(*twins.model, *twins.twin, fmt::format("{}, step {}", what, step), closeness);
      }
    };
    train(std::make_shared<ScaledHook>(), 0.5, {1e-5, 1e-7}, "scaled");
    train(std::make_shared<ReplacingHook>(), 1, {1e-5, 1e-7}, "replacing");
    train(make_compress_hook(torch::kBFloat16), 1, {2e-2, 1e-3}, "bfloat16");
    train(make_compress_hook(torch::kHalf), 1, {3e-3, 1e-4}, "half");
    train(nullptr, 1, {}, "default");
    EXPECT_THROW(make_compress_hook(torch::kFloat), c10::ValueError);

    Twins<Small> twins([] { return Small(); });
    twins.ddp.register_comm_hook(make_noop_hook());
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor x = random_input({4, 20}, step);
      twins.model->zero_grad();
      twins.twin->zero_grad();
      twins.ddp->forward(x).backward();
      twins.twin->forward(x).backward();
      expect_same_gradients(*twins.model, *twins.twin, "every rank keeps its own");
    }
    twins.ddp.register_comm_hook(nullptr);
    twins.step([x = random_input({4, 20}, 9)](Small& net) { return net->forward(x); }, "back to the mean");
  });
}

// Takes some time to finish, without any other rank.
struct SlowHook final : CommHook {
  std::function<void()> run(GradBucket& bucket) override {
    auto work = all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG});
    return [work] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      work->wait();
    };
  }
};

TEST_P(DdpInterfaceMulti, TellsTheTimeOfCommunication) {
  run_processes(GetParam(), [](int) {
    const Rank rank;
    Small net;
    DistributedDataParallel<Small> ddp(net, {.bucket_cap_mb = 0.02});
    const auto pass = [&](int step) {
      net->zero_grad();
      ddp->forward(random_input({4, 20}, step)).backward();
      return ddp.reducer().comm_time().value();
    };
    EXPECT_EQ(ddp.reducer().comm_time()->total_exposed, 0);
    double sum = 0;
    for (int step = 0; step < 3; ++step) {
      const Reducer::CommTime times = pass(step);
      EXPECT_EQ(times.exposed_comm_time > 0, get_world_size() > 1);
      EXPECT_GE(times.backward_comm_time, step == 0 ? 0 : times.exposed_comm_time);  // the first one builds buckets
      sum += times.exposed_comm_time;
      EXPECT_DOUBLE_EQ(times.total_exposed, sum);
    }
    {
      const auto guard = ddp.no_sync();
      EXPECT_DOUBLE_EQ(pass(3).total_exposed, sum) << "this pass sends nothing";
    }
    ddp.register_comm_hook(std::make_shared<SlowHook>());
    pass(4);
    const Reducer::CommTime slow = pass(5);
    EXPECT_GE(slow.exposed_comm_time, 0.02);
    EXPECT_GE(slow.backward_comm_time, 0.02);
  });
}

TEST_P(DdpInterfaceMulti, AveragesGradientsByHand) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const int world = get_world_size();
    const torch::Tensor used = torch::zeros({3, 2}, torch::requires_grad());
    const torch::Tensor by_rank_0 = torch::zeros({4}, torch::dtype(torch::kDouble).requires_grad(true));
    const torch::Tensor by_none = torch::zeros({4}, torch::requires_grad());
    const torch::Tensor frozen = torch::zeros({4});
    used.mutable_grad() = torch::full({2, 3}, number + 1.0F).t();
    if (number == 0) by_rank_0.mutable_grad() = torch::ones({4}, torch::kDouble);
    average_gradients({used, by_rank_0, used, by_none, frozen});
    EXPECT_TRUE(torch::allclose(used.grad(), torch::full({3, 2}, (world + 1) / 2.0)));
    EXPECT_TRUE(torch::allclose(by_rank_0.grad(), torch::full({4}, 1.0 / world, torch::kDouble)));
    EXPECT_FALSE(by_none.grad().defined());
    EXPECT_FALSE(frozen.grad().defined());
    average_gradients(std::vector<torch::Tensor>{});

    const std::string error = error_of([&] { average_gradients({used, number == world - 1 ? used * 2 : used}); });
    EXPECT_NE(error.find("parameter 'parameters[1]' is the result of an operation (MulBackward"), std::string::npos)
        << error;
  });
}

// Sparse on one rank, dense on another, none on a third.
TEST_P(DdpInterfaceMulti, AveragesSparseGradientsByHand) {
  run_processes(GetParam(), [](int number) {
    const Rank rank;
    const torch::Tensor table = torch::zeros({5, 2}, torch::requires_grad());
    const torch::Tensor rows = torch::tensor({{1, 3, 1}}, torch::kLong);
    if (number == 0) table.mutable_grad() = torch::sparse_coo_tensor(rows, torch::ones({3, 2}), {5, 2});
    if (number == 1) table.mutable_grad() = torch::full({5, 2}, 4.0);
    torch::Tensor expected = torch::zeros({5, 2});
    expected[1] += 2;
    expected[3] += 1;
    if (get_world_size() > 1) expected += 4;
    average_gradients({table});
    EXPECT_TRUE(table.grad().is_sparse());
    EXPECT_TRUE(torch::allclose(table.grad().to_dense(), expected / get_world_size()));
  });
}

}  // namespace
}  // namespace lockstep::test
