// What ZeroRedundancyOptimizer says of mistakes, on all ranks, and that it goes on after them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>

#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "nn/error_texts.h"
#include "nn/sharded_parameters.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
namespace optim = torch::optim;

// Adam takes no sparse gradients, which only the owner of the parameter notices. The group goes on working.
TEST(ZeroRedundancyOptimizerErrorsMulti, AStepThatOneRankCannotTakeIsAnErrorOfAll) {
  run_processes(3, [](int rank) {
    const Rank world;
    const std::vector<Tensor> all = parameters_of_every_kind();
    ZeroRedundancyOptimizer<optim::Adam> optimizer(all, optim::AdamOptions(0.1));
    const int owner = optimizer.owner_of(all[0]);
    for (const bool with_closure : {false, true}) {
      set_random_gradients(all, 0);
      all[0].mutable_grad() = torch::ones(all[0].sizes()).to_sparse();
      const ShardedOptimizer::LossClosure closure = [] { return torch::zeros({}); };
      const std::string error =
          error_of([&] { optimizer.step(with_closure ? closure : ShardedOptimizer::LossClosure()); });
      expect_in(error, {"sparse gradients"});
      if (rank != owner) expect_in(error, {fmt::format("rank(s) {} could not take part", owner), "sharded optimizer"});
    }
    step_on(optimizer, all, 1, 2);
    expect_equal_on_all_ranks(all, "parameter");
  });
}

// What one rank alone freezes or adds. The next step of ranks that are alike again succeeds.
TEST(ZeroRedundancyOptimizerErrorsMulti, RanksWithDifferentParametersAreAnErrorUntilTheyAreAlike) {
  run_processes(2, [](int rank) {
    const Rank world;
    const auto made = [](torch::IntArrayRef shape) { return torch::zeros(shape).requires_grad_(); };
    const std::vector<Tensor> all{made({8, 3}), made({5, 4}), made({7, 6})};
    ZeroRedundancyOptimizer<optim::SGD> optimizer(all, optim::SGDOptions(0.1));
    for (const int frozen : {1, 0}) {  // as many dimensions on both ranks
      step_on(optimizer, all, 0, 1);
      set_random_gradients(all, 1);
      const Tensor& mine = all[rank == 0 ? frozen : 1 - frozen];
      mine.mutable_grad().reset();
      mine.requires_grad_(false);
      expect_in(error_of([&] { optimizer.step(); }), {"disagree"});
      mine.requires_grad_(true);
      step_on(optimizer, all, 2, 3);
      expect_equal_on_all_ranks(all, "parameter");
    }
    // One dimension in all: a message of the new group must not be taken for one of the old.
    ZeroRedundancyOptimizer<optim::SGD> small(std::vector<Tensor>{made({64})}, optim::SGDOptions(0.1));
    if (rank == 0) small.add_param_group(std::vector<Tensor>{made({4, 4})});
    set_random_gradients(small.param_groups()[0].params(), 0);
    expect_in(error_of([&] { small.step(); }), {"disagree"});
  });
}

// As many bytes and dimensions in all, so that only what is sent shows it, and only to the rank that gets it.
TEST(ZeroRedundancyOptimizerErrorsMulti, OtherDimensionsOnOneRankAreAnErrorThere) {
  run_processes(2, [](int rank) {
    const Rank world;
    std::vector<Tensor> all;
    for (int i = 0; i < 4; ++i)
      all.push_back(
          torch::ones(i < 2 ? std::vector<std::int64_t>{4, 6} : std::vector<std::int64_t>{24}).requires_grad_());
    ZeroRedundancyOptimizer<optim::SGD> optimizer(all, optim::SGDOptions(0.1));
    EXPECT_EQ(optimizer.owner_of(all[0]), 0);
    EXPECT_EQ(optimizer.owner_of(all[2]), 0);
    const auto reshape = [&](const Tensor& one, torch::IntArrayRef shape) {
      one.mutable_grad().reset();
      one.set_data(one.detach().view(shape));
    };
    if (rank == 1) {
      reshape(all[0], {24});
      reshape(all[2], {4, 6});
    }
    set_random_gradients(all, 0);
    const std::string error = error_of([&] { optimizer.step(); });
    if (rank == 0) {
      EXPECT_EQ(error, "no error");
    } else {
      expect_in(error, {"rank 0 sends a parameter of 2 dimensions", "one of size [24]", "same parameters"});
      reshape(all[0], {4, 6});
      reshape(all[2], {24});
    }
    step_on(optimizer, all, 1, 2);
    expect_equal_on_all_ranks(all, "parameter");
  });
}

// On one rank alone the others wait for it, as in any program that goes on after an exception.
TEST(ZeroRedundancyOptimizerErrorsMulti, WhatAClosureThrowsIsTheProgramsOwn) {
  run_processes(2, [](int) {
    const Rank world;
    const std::vector<Tensor> all = parameters_of_every_kind();
    ZeroRedundancyOptimizer<optim::SGD> optimizer(all, optim::SGDOptions(0.1));
    EXPECT_THROW(optimizer.step([]() -> Tensor { throw std::runtime_error("the program's own"); }), std::runtime_error);
    step_on(optimizer, all, 0, 1);
    expect_equal_on_all_ranks(all, "parameter");
  });
}

TEST(ZeroRedundancyOptimizerErrorsMulti, SaysWhatCannotBeSharded) {
  run_processes(2, [](int rank) {
    const Rank world;
    const std::vector<Tensor> all = parameters_of_every_kind();
    const auto error = [](const std::vector<Tensor>& list) {
      return error_of([&] { ZeroRedundancyOptimizer<optim::SGD>(list, optim::SGDOptions(0.1)); });
    };
    expect_in(error_of([&] { ZeroRedundancyOptimizer<optim::LBFGS>(all, optim::LBFGSOptions(1)); }),
              {"LBFGS cannot be sharded", "all parameters at once"});
    expect_in(error({}), {"expected parameters, got none"});
    expect_in(error({all[0], all[1], all[0]}),
              {"parameter 2 of group 0", "twice", "DistributedDataParallel::parameters()"});
    // What one rank alone gets wrong is an error of all of them.
    const auto expect_refused_by_0 = [&](const std::string& text, const std::string& why) {
      expect_in(text, {why});
      if (rank == 1) expect_in(text, {"rank 1: ZeroRedundancyOptimizer needs", "rank(s) 0 cannot take part"});
    };
    expect_refused_by_0(error({all[0], all[1], all[rank == 0 ? 0 : 2]}), "parameter 2 of group 0 is there twice");
    expect_refused_by_0(error(rank == 0 ? std::vector<Tensor>() : all), "expected parameters, got none");
    expect_refused_by_0(error(rank == 0 ? std::vector<Tensor>{all[0] * 2} : all), "non-leaf");
    expect_refused_by_0(error_of([&] {
                          ZeroRedundancyOptimizer<optim::SGD>(all, optim::SGDOptions(0.1),
                                                              {.bucket_cap_mb = rank == 0 ? -1.0 : 25.0});
                        }),
                        "bucket_cap_mb must be positive, got -1");
    expect_refused_by_0(
        error_of([&] { ZeroRedundancyOptimizer<optim::SGD>(all, optim::SGDOptions(rank == 0 ? -1.0 : 0.1)); }),
        "Invalid learning rate");
    expect_in(error_of([&] {
                if (rank == 0) ZeroRedundancyOptimizer<optim::SGD>(all, optim::SGDOptions(0.1));
                if (rank == 1) ZeroRedundancyOptimizer<optim::Adam>(all, optim::AdamOptions(0.1));
              }),
              {"SGD on backend lockstep on rank(s) 0", "Adam on backend lockstep on rank(s) 1"});
    expect_in(error_of([&] {
                ZeroRedundancyOptimizer<optim::SGD>(all, optim::SGDOptions(0.1),
                                                    {.bucket_cap_mb = rank == 0 ? 1.0 : 25.0});
              }),
              {"option bucket_cap_mb: 1 on rank(s) 0", "option bucket_cap_mb: 25 on rank(s) 1"});
    expect_in(error({all[0], all[rank == 0 ? 1 : 2]}),
              {"the same parameters", "group 0, parameter 1: Double [7] on rank(s) 0",
               "group 0, parameter 1: Float [] on rank(s) 1"});
    expect_in(error_of([&] { ZeroRedundancyOptimizer<optim::SGD>(all, optim::SGDOptions(0.1), {.bucket_cap_mb = 0}); }),
              {"bucket_cap_mb must be positive, got 0"});
    expect_in(error_of([&] { ZeroRedundancyOptimizer<optim::SGD>(all, optim::SGDOptions(0.1), {.copies = 0}); }),
              {"copies must be at least 1, got 0"});
    ZeroRedundancyOptimizer<optim::SGD> optimizer(all, optim::SGDOptions(0.1));
    expect_in(error_of([&] { optimizer.load_consolidated(optim::SGD(groups_with({{all[0]}}), 0.1)); }),
              {"expected 7 parameters", "got 1"});
    expect_in(error_of([&] { optimizer.owner_of(torch::ones({1})); }), {"none of the parameters"});
  });
}

}  // namespace
}  // namespace lockstep::test
