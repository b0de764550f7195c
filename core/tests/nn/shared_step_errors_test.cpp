// What SharedStep refuses, on all ranks, and what it leaves when a rank dies.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/shared_step.h"
#include "nn/error_texts.h"
#include "nn/sharded_parameters.h"
#include "nn/shared_step/step_record.h"
#include "nn/twins.h"
#include "support/process_ranks.h"

namespace lockstep::test {
namespace {

using torch::Tensor;
namespace optim = torch::optim;
using SharedSgd = SharedStep<optim::SGD>;

Tensor ones_of(torch::IntArrayRef shape) {
  return torch::ones(shape).requires_grad_();
}

TEST(StepRecord, TheFirstRankDecidesForAll) {
  alignas(64) std::byte memory[1024]{};
  nn_detail::StepRecord one(memory, 2);
  nn_detail::StepRecord other(memory, 2);
  EXPECT_TRUE(one.begin(1));
  EXPECT_FALSE(other.abandon(1)) << "the other rank waits for this one";
  EXPECT_TRUE(other.begin(1));
  EXPECT_TRUE(one.abandon(2));
  EXPECT_FALSE(other.begin(2));
  EXPECT_TRUE(other.abandon(2));
}

TEST(StepRecord, TheFirstRankSaysForAllWhetherTheStepIsFinished) {
  alignas(64) std::byte memory[1024]{};
  nn_detail::StepRecord one(memory, 2);
  nn_detail::StepRecord other(memory, 2);
  EXPECT_TRUE(one.finish(1, true));
  EXPECT_TRUE(other.finish(1, false));
  EXPECT_FALSE(one.is_given_up(1));
  const std::uint64_t progress = one.progress(4);
  other.begin_part(3, 2, 0, 0);
  EXPECT_NE(one.progress(4), progress);
  EXPECT_FALSE(one.finish(2, false)) << "it waited in vain";
  EXPECT_TRUE(other.is_given_up(2));
  EXPECT_FALSE(other.finish(2, true)) << "what the slow rank has now is of no use";
}

TEST(StepRecord, SaysWhichTilesAreBegunAndWhoRepairs) {
  alignas(64) std::byte memory[1024]{};
  nn_detail::StepRecord record(memory, 2);
  EXPECT_FALSE(record.tile(3, 1).begun);
  record.begin_part(3, 1, 40, 63);
  EXPECT_TRUE(record.tile(3, 1).begun);
  EXPECT_EQ(record.tile(3, 1).part, 40U);
  EXPECT_EQ(record.tile(3, 1).lane, 63);
  *record.word(3) += nn_detail::StepRecord::kOnePart;
  EXPECT_TRUE(record.tile(3, 1).begun);
  EXPECT_EQ(record.tile(3, 1).part, 41U);
  EXPECT_EQ(*record.word(3), nn_detail::StepRecord::begun(1, 41, 63));
  EXPECT_FALSE(record.tile(3, 1).done);
  record.end_tile(3, 1);
  EXPECT_TRUE(record.tile(3, 1).done);
  EXPECT_FALSE(record.tile(3, 2).done);
  EXPECT_EQ(record.repairer(1, 5), -1);
  EXPECT_TRUE(record.take_over(1, 5, -1, 0));
  EXPECT_EQ(record.repairer(1, 5), 0);
  EXPECT_FALSE(record.take_over(1, 5, -1, 1));
  EXPECT_TRUE(record.take_over(1, 5, 0, 1)) << "the first one has died";
  record.give_back(1);
  EXPECT_EQ(record.repairer(1, 5), -1);
  EXPECT_TRUE(record.take_over(1, 5, -1, 0));
}

TEST(SharedStepErrorsMulti, ParametersThatCannotBeSharedAreAnErrorOfAllRanks) {
  run_processes(2, [](int rank) {
    const Rank world;
    const auto refused = [&](const std::vector<Tensor>& bad, const std::vector<std::string>& parts) {
      const Tensor good = ones_of({8});
      const std::string error =
          error_of([&] { SharedSgd optimizer(rank == 1 ? bad : std::vector<Tensor>{good}, optim::SGDOptions(0.1)); });
      expect_in(error, parts);
      if (rank == 0) expect_in(error, {"rank(s) 1 cannot take part"});
    };
    const Tensor whole = ones_of({8});
    refused({}, {"expected parameters"});
    refused({whole, whole}, {"parameter 1 of group 0 shares its memory with parameter 0 of group 0"});
    refused({whole, whole.detach().requires_grad_()}, {"shares its memory"});
    refused({torch::ones({16}).narrow(0, 0, 8).requires_grad_()}, {"part of a memory of 64 bytes", "clone()"});
    refused({torch::ones({8, 2}).select(1, 0).requires_grad_()}, {"holes"});
    refused({torch::ones({8}).to_sparse().requires_grad_()}, {"Sparse", "dense"});
    refused({torch::ones({8}, torch::kMeta).requires_grad_()}, {"meta", "CPU"});
    expect_in(error_of([&] { SharedSgd optimizer(std::vector<Tensor>{ones_of({8 + rank})}, optim::SGDOptions(0.1)); }),
              {"they differ", "[8]", "[9]"});
    expect_in(error_of([&] { SharedSgd optimizer(std::vector<Tensor>{ones_of({8})}, optim::SGDOptions(0.1 + rank)); }),
              {"lr 0.1", "lr 1.1"});
    expect_in(error_of([&] {
                SharedSgd optimizer(std::vector<Tensor>{ones_of({8})}, optim::SGDOptions(rank == 0 ? 1 : -1));
              }),
              {"Invalid learning rate"});
    if (rank == 1) expect_in(error_of([&] { SharedSgd(std::vector<Tensor>{}, optim::SGDOptions(1)); }), {"expected"});
    if (rank == 0)
      expect_in(error_of([&] { SharedSgd(std::vector<Tensor>{ones_of({8})}, optim::SGDOptions(1)); }), {"rank(s) 1"});
  });
}

TEST(SharedStepErrorsMulti, MoreMemoryThanMayBeUsedIsAnErrorThatNamesTheLimit) {
  run_processes(2, [](int rank) {
    const Rank world;
    std::uint64_t huge_memory = 0;
    const Tensor huge = torch::from_blob(&huge_memory, {std::int64_t{1} << 46}, torch::kByte);  // never touched
    const std::string error = error_of([&] { SharedSgd optimizer(std::vector<Tensor>{huge}, optim::SGDOptions(0.1)); });
    expect_in(error, {"take 70368744177664 bytes", "memory.max"});
    if (rank == 1) {
      rlimit limit{};
      getrlimit(RLIMIT_FSIZE, &limit);
      limit.rlim_cur = 1 << 20;
      ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    expect_in(error_of([&] { SharedSgd optimizer(std::vector<Tensor>{ones_of({100000})}, optim::SGDOptions(0.1)); }),
              {"1600000 bytes", "1048576 bytes", "ulimit -f"});
  });
}

// Nothing has changed after such an error, and the next step that all ranks can take succeeds.
TEST(SharedStepErrorsMulti, AStepThatRanksCannotTakeTogetherChangesNothing) {
  run_processes(2, [](int rank) {
    const Rank world;
    const std::vector<Tensor> all{ones_of({5000}), ones_of({30, 20})};
    SharedSgd optimizer(all, optim::SGDOptions(0.5).momentum(0.5));
    const auto refused = [&](const std::function<void()>& spoil, const std::vector<std::string>& parts) {
      set_random_gradients(all, 0);
      const std::vector<Tensor> before{all[0].detach().clone(), all[1].detach().clone()};
      if (rank == 1) spoil();
      expect_in(error_of([&] { optimizer.step(); }), parts);
      set_random_gradients(all, 0);
      if (rank == 0) expect_same_bits(all, before, parts.front());
    };
    const torch::NoGradGuard no_grad;
    refused([&] { all[0].mutable_grad() = torch::ones({5000}).to_sparse(); }, {"sparse gradients", "Sparse"});
    refused([&] { all[0].mutable_grad() = torch::ones({5000}, torch::kDouble); }, {"Double", "expected Float"});
    refused([&] { all[1].mutable_grad().reset(); }, {"they differ", "no gradient"});
    refused([&] { all[1].mutable_grad().mul_(1.1); },
            {"the gradient of parameter 1 of group 0 on rank(s) 1 differs from that of rank 0", "1 of 2", "no_sync"});
    refused([&] { optimizer.param_groups()[0].options().set_lr(0.25); }, {"lr 0.5", "lr 0.25"});
    optimizer.param_groups()[0].options().set_lr(0.5);
    refused([&] { optimizer.add_param_group(std::vector<Tensor>{ones_of({3})}); }, {"they differ"});
    if (rank == 1) optimizer.param_groups().pop_back();
    // In words: this rank alone has written.
    refused([&] { all[0].add_(1); }, {"they differ", "parameter 0 of group 0", "written since the last step"});
    all[0].copy_(torch::ones({5000}));
    optimizer.step();
    EXPECT_EQ(optimizer.steps(), 1U);
    expect_equal_on_all_ranks(all, "parameter");
    // A scheduler that changes momentum, on all ranks alike.
    static_cast<optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum(0.9);
    set_random_gradients(all, 1);
    optimizer.step();
    EXPECT_EQ(optimizer.steps(), 2U);
  });
}

// Of every dtype, however small the gradient is beside others.
TEST(SharedStepErrorsMulti, AGradientOfOneRankAloneIsAnErrorThatNamesTheParameter) {
  run_processes(3, [](int rank) {
    const Rank world;
    for (const torch::Dtype dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
      const std::vector<Tensor> all{ones_of({5000}), torch::ones({3}, dtype).requires_grad_()};
      SharedSgd optimizer(all, optim::SGDOptions(0.5));
      all[0].mutable_grad() = torch::full({5000}, 1e6);
      all[1].mutable_grad() = torch::full({3}, rank == 0 ? 0.5 : 0.25, dtype);
      expect_in(error_of([&] { optimizer.step(); }),
                {"parameter 1 of group 0 on rank(s) 1, 2 differs", "1 of 2 gradients"});
      // What overflowed is the same on all ranks, whatever the bits of a NaN are.
      const double nan = std::numeric_limits<double>::quiet_NaN();
      all[1].mutable_grad() = torch::full({3}, rank == 0 ? nan : -nan, dtype);
      optimizer.step();
    }
  });
}

// With a new group the values of rank 0 count too, so what only some ranks have written must not get lost.
TEST(SharedStepErrorsMulti, WritesOfOneRankBesideANewGroupAreAnError) {
  run_processes(2, [](int rank) {
    const Rank world;
    const Tensor one = ones_of({5000});
    SharedSgd optimizer(std::vector<Tensor>{one}, optim::SGDOptions(0.5));
    optimizer.add_param_group(std::vector<Tensor>{ones_of({3})});
    const torch::NoGradGuard no_grad;
    if (rank == 1) one.add_(1);
    expect_in(error_of([&] { optimizer.step(); }),
              {"parameter 0 of group 0: not written since the last step on rank(s) 0", "written"});
    if (rank == 1) one.sub_(1);
    optimizer.step();
    EXPECT_EQ(optimizer.steps(), 1U);
  });
}

// What a rank writes is told by parameter and by value, for parameters of one page too.
TEST(SharedStepErrorsMulti, WritesThatDifferBetweenRanksAreAnErrorThatNamesTheParameter) {
  run_processes(2, [](int rank) {
    const Rank world;
    const std::vector<Tensor> all{ones_of({8}), ones_of({8}), ones_of({8})};
    SharedSgd optimizer(all, optim::SGDOptions(0.5).momentum(0.5));
    set_random_gradients(all, 0);
    optimizer.step();
    const torch::NoGradGuard no_grad;
    const std::vector<Tensor> before{all[0].clone(), all[1].clone()};
    all[static_cast<std::size_t>(rank)].add_(1);
    expect_in(error_of([&] { optimizer.step(); }),
              {"parameter 0 of group 0", "not written since the last step on rank(s) 1"});
    all[0].copy_(before[0]);
    all[1].fill_(rank);
    expect_in(error_of([&] { optimizer.step(); }), {"parameter 1 of group 0", "written since the last step, contents"});
    all[1].copy_(before[1]);
    for (const Tensor& one : all) one.fill_(4);  // alike on both
    set_random_gradients(all, 1);
    optimizer.step();
    expect_equal_on_all_ranks(all, "parameter");
  });
}

// Only the tensors that the optimizer knows lie in shared memory.
TEST(SharedStepErrorsMulti, OtherMemoryOfAParameterOrItsStateIsRefused) {
  run_processes(2, [](int) {
    const Rank world;
    const std::vector<Tensor> all{ones_of({8}), torch::ones({8}, torch::kBFloat16).requires_grad_(), ones_of({8})};
    SharedStep<optim::Adam> optimizer(all, optim::AdamOptions(0.5));
    set_random_gradients(all, 0);
    optimizer.step();
    const torch::NoGradGuard no_grad;
    const auto refused = [&](const std::vector<std::string>& parts) {
      expect_in(error_of([&] { optimizer.step(); }), parts);
    };
    const Tensor shared = all[0].data();
    all[0].set_data(torch::full({8}, 4.0));
    refused({"parameter 0 of group 0 got other memory", "copy_", "new optimizer"});
    all[0].set_data(all[2].data());
    refused({"parameter 0 of group 0 got other memory"});
    all[0].set_data(shared);
    const auto state_of = [&](std::size_t index) -> optim::AdamParamState& {
      return static_cast<optim::AdamParamState&>(*optimizer.state().at(all[index].unsafeGetTensorImpl()));
    };
    const Tensor first = state_of(0).exp_avg();
    state_of(0).exp_avg(state_of(2).exp_avg());
    refused({"the state of parameter 0 of group 0", "the memory of another one"});
    state_of(0).exp_avg(first);
    const Tensor half = state_of(1).exp_avg();
    state_of(1).exp_avg(half.to(torch::kFloat));
    refused({"the state of parameter 1 of group 0", "expected BFloat16"});
    state_of(1).exp_avg(half.clone());
    {
      const c10::InferenceMode inference;
      refused({"inference mode"});
    }
    optimizer.step();
    EXPECT_EQ(optimizer.steps(), 2U);
    expect_equal_on_all_ranks(all, "parameter");
  });
}

// A rank that uses the plain optimizer.
TEST(SharedStepErrorsMulti, ARankWithoutTheSharedStepIsAnErrorOfTheGroup) {
  run_processes(2, [](int rank) {
    const Rank world;
    if (rank == 0) {
      const std::string error =
          error_of([&] { SharedSgd optimizer(std::vector<Tensor>{ones_of({8})}, optim::SGDOptions(0.1)); });
      expect_in(error, {"all_gather", "all_reduce"});
    } else {
      Tensor one = torch::ones({1});
      EXPECT_NE(error_of([&] { all_reduce(one); }), "no error");
    }
  });
}

// Ranks from `first_failing` on can step no tile: neither their own, nor that of another rank. Many steps, since any
// rank may be the first to look for parts that are left.
TEST(SharedStepErrorsMulti, APartThatFailsAtItsRankIsDoneByARankThatCan) {
  run_processes(3, [](int rank) {
    const Rank world;
    for (int first_failing = 2; first_failing >= 0; --first_failing) {
      const auto factory = [&](const auto& groups, const optim::OptimizerOptions& options) {
        TORCH_CHECK(groups.empty() || rank < first_failing, "no memory");
        return std::make_unique<optim::SGD>(groups, static_cast<const optim::SGDOptions&>(options));
      };
      const Tensor mine = ones_of({60000});
      const optim::SGDOptions options(0.25);
      optim::SGD inner(nn_detail::SharedStepper::agree({optim::OptimizerParamGroup({mine})}, options, factory, {}),
                       options);
      nn_detail::SharedStepper stepper(inner, factory, {});
      for (int step = 1; step <= 20 && first_failing > 0; ++step) {
        mine.mutable_grad() = torch::ones({60000});
        stepper.step();
        ASSERT_EQ(stepper.steps(), static_cast<std::uint64_t>(step));
        ASSERT_TRUE(torch::equal(mine, torch::full({60000}, 1 - 0.25 * step)));
      }
      if (first_failing > 0) continue;
      mine.mutable_grad() = torch::ones({60000});
      expect_in(error_of([&] { stepper.step(); }), {"parameters are not whole"});
      EXPECT_FALSE(stepper.is_whole());
      expect_in(error_of([&] { stepper.step(); }), {"broke in an earlier step", "load a checkpoint"});
    }
  });
}

// A gradient of ones, of which a page from about element `safe` on cannot be read: the process that reads it is killed.
// It is one page, so that the few elements that ranks compare before the step lie outside. The page begins
// inside of an odd unit of a kernel, and in shared_step_average_test.cpp inside of the rest of a parameter.
Tensor deadly_gradient(std::int64_t elements, std::int64_t safe) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kShift = (256 + 64 + 4) * sizeof(float);
  const std::size_t bytes = (kShift + static_cast<std::size_t>(elements) * sizeof(float) + kPage - 1) / kPage * kPage;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const Tensor gradient = torch::from_blob(static_cast<std::byte*>(memory) + kShift, {elements}).fill_(1);
  const std::size_t from = (kShift + static_cast<std::size_t>(safe) * sizeof(float)) / kPage * kPage;
  mprotect(static_cast<std::byte*>(memory) + from, kPage, PROT_NONE);
  signal(SIGSEGV, [](int) { kill(getpid(), SIGKILL); });
  return gradient;
}

constexpr std::int64_t kDeadlyElements = 200000;

// Rank 1 of 3 is killed in its third step where `die` says so. The others have the step whole, or not at all.
void survive_in_step(const std::function<void(const Tensor& parameter)>& die, int steps, bool fused = false) {
  run_processes_with_a_victim(
      3, /*victim=*/1,
      [&](int rank, const std::filesystem::path& report) {
        const Rank world;
        const Tensor mine = ones_of({kDeadlyElements});
        const Tensor theirs = ones_of({kDeadlyElements});
        SharedStep<optim::Adam> optimizer(std::vector<Tensor>{mine}, optim::AdamOptions(0.1), {.fused = fused});
        optim::Adam plain(std::vector<Tensor>{theirs}, optim::AdamOptions(0.1));
        std::string error = "no error";
        for (int step = 0; step < 3; ++step) {
          for (const Tensor* one : {&mine, &theirs}) one->mutable_grad() = torch::ones({kDeadlyElements});
          if (step < steps) fused ? static_cast<void>(fused_step(plain)) : static_cast<void>(plain.step());
          if (step == 2 && rank == 1) die(mine);
          error = error_of([&] { optimizer.step(); });
        }
        EXPECT_EQ(optimizer.steps(), static_cast<std::uint64_t>(steps));
        EXPECT_TRUE(optimizer.is_whole());
        EXPECT_TRUE(torch::equal(mine, theirs)) << error;
        const auto& state = static_cast<const optim::AdamParamState&>(*optimizer.state().begin()->second);
        const auto& plain_state = static_cast<const optim::AdamParamState&>(*plain.state().begin()->second);
        EXPECT_EQ(state.step(), steps);
        EXPECT_TRUE(torch::equal(state.exp_avg_sq(), plain_state.exp_avg_sq()));
        expect_in(error_of([&] { optimizer.step(); }), {"broke in an earlier step", "new group"});
        std::ofstream(report) << error;
      },
      [&](const std::filesystem::path& report) {
        std::ifstream file(report);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        expect_in(text, {"rank 1", fmt::format("parameters are whole, as after step {}", steps)});
      });
}

TEST(SharedStepFault, ADeathBeforeTheStepChangesNothing) {
  survive_in_step([](const Tensor& /*parameter*/) { raise(SIGKILL); }, 2);
}

TEST(SharedStepFault, SurvivorsFinishTheStepOfARankThatDiesInIt) {
  // Rank 1 owns the tiles 5 to 8, of 16384 elements. It dies in the middle of tile 6, at the begin of tile 7, in its
  // last.
  for (const bool fused : {false, true}) {
    for (const std::int64_t safe : {6 * 16384 + 8192, 7 * 16384, 8 * 16384 + 4096}) {
      survive_in_step(
          [safe](const Tensor& parameter) { parameter.mutable_grad() = deadly_gradient(kDeadlyElements, safe); }, 3,
          fused);
    }
  }
}

}  // namespace
}  // namespace lockstep::test
