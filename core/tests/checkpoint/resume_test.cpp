// A training that is stopped in the middle of an epoch goes on: with as many ranks as before with the same bits, with
// another number of ranks with the rest of the epoch's samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "checkpoint/same_values.h"
#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/shared_step.h"
#include "support/process_ranks.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::int64_t kSamples = 60;
constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kEpochs = 3;
constexpr int kResumedWorld = 2;
constexpr std::int64_t kStopAfter = 21;  // steps: 15 of the first epoch, 6 of the second; 36 samples of this are left
using Indices = std::vector<std::int64_t>;

class Samples : public data::Dataset {
 public:
  std::int64_t size() const override { return kSamples; }
  data::Example get(std::int64_t index) const override {
    return {torch::sin(torch::arange(6.0F) * static_cast<double>(index + 1)), torch::tensor(index)};
  }
};

// Both have the same bits, and the same checkpoints.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<torch::Tensor>& parameters, bool shared) {
  const torch::optim::AdamWOptions options(0.01);
  if (shared) return std::make_unique<SharedStep<torch::optim::AdamW>>(parameters, options);
  return std::make_unique<torch::optim::AdamW>(parameters, options);
}

// One rank of the training. The net draws random numbers (dropout), and the rates change every few steps.
class Training {
 public:
  Training(std::filesystem::path folder, int rank, bool shared = false)
      : folder_(std::move(folder)),
        rank_(rank),
        ddp_(net_),
        optimizer_(make_optimizer(net_->parameters(), shared)),
        scheduler_(*optimizer_, 4, 0.7),
        loader_(Samples(), {.batch_size = kBatch, .shuffle = true, .seed = 3}),
        manager_(folder_ / "runs") {
    torch::manual_seed(100 + static_cast<std::uint64_t>(rank));
  }

  void resume() {
    const auto state = manager_.load_latest([](const auto& steps) { return all_gather_object(steps); });
    ASSERT_TRUE(state);
    state->restore_model(*net_);
    state->restore_optimizer(*optimizer_);
    state->restore_scheduler(scheduler_);
    state->restore_generator();
    loader_.load_state(data::sampler_state_from_string(state->get_text("sampler")));
    step_ = state->step();
  }

  void train_to_the_end() {
    for (bool first = true; first || loader_.epoch() + 1 < kEpochs; first = false) {
      for (auto& [inputs, indices] : loader_) {
        const auto* values = indices.const_data_ptr<std::int64_t>();
        seen_.insert(seen_.end(), values, values + indices.numel());
        learn(inputs);
        if (++step_ == kStopAfter) save();
      }
      // Only the epoch in which the training was stopped counts.
      if (loader_.epoch() == 1) after_.swap(seen_);
      seen_.clear();
    }
  }

  // The samples of the stopped epoch, before and after the stop.
  const Indices& before() const { return before_; }
  const Indices& after() const { return after_; }

  // Everything that the training has become.
  c10::IValue state() const {
    c10::impl::GenericDict run(c10::AnyType::get(), c10::AnyType::get());
    run.insert("model", to_ivalue(state_dict(*net_)));
    run.insert("optimizer", state_dict(*optimizer_));
    return run;
  }

 private:
  void learn(const torch::Tensor& inputs) {
    optimizer_->zero_grad();
    (ddp_->forward(inputs) - inputs.sum(1, /*keepdim=*/true)).pow(2).mean().backward();
    optimizer_->step();
    scheduler_.step();
  }

  void save() {
    before_.swap(seen_);
    const auto generators = gather_object(generator_state(), 0);
    if (rank_ != 0) return;
    Checkpoint state;
    state.add_model(*net_);
    state.add_optimizer(*optimizer_);
    state.add_scheduler(scheduler_);
    state.add_generators(generators);
    state.set("sampler", to_string(loader_.state()));
    manager_.save(step_, state);
  }

  std::filesystem::path folder_;
  int rank_;
  torch::nn::Sequential net_{torch::nn::Linear(6, 8), torch::nn::Dropout(0.3), torch::nn::Linear(8, 1)};
  DistributedDataParallel<torch::nn::Sequential> ddp_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  torch::optim::StepLR scheduler_;
  data::DataLoader loader_;
  CheckpointManager manager_;
  std::int64_t step_ = 0;
  Indices seen_;  // in this epoch, since the last save
  Indices before_;
  Indices after_;
};

Indices of_all_ranks(const Indices& mine) {
  Indices all;
  for (const Indices& part : all_gather_object(mine)) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(ResumeMulti, GoesOnInTheMiddleOfAnEpochWithAnyNumberOfRanks) {
  const test::SharedScratchFolder folder;
  torch::set_num_threads(1);
  const auto whole = folder.path("whole.pt");
  test::run_processes(kResumedWorld, [&](int rank) {
    const ProcessGroupGuard group;
    Training training(folder.path(), rank);
    training.train_to_the_end();
    const Indices before = of_all_ranks(training.before());
    if (rank != 0) return;
    write_torch_file(whole, training.state());
    write_torch_file(folder.path("before.pt"), torch::tensor(before));
  });
  for (const auto& [world, shared] : {std::pair{2, false}, {2, true}, {3, false}, {1, true}}) {
    test::run_processes(world, [&, world = world, shared = shared](int rank) {
      const ProcessGroupGuard group;
      Training training(folder.path(), rank, shared);
      training.resume();
      training.train_to_the_end();
      Indices seen = of_all_ranks(training.after());
      if (rank != 0) return;
      const torch::Tensor before = read_torch_file(folder.path("before.pt")).toTensor();
      EXPECT_EQ(before.numel(), 24);
      seen.insert(seen.end(), before.const_data_ptr<std::int64_t>(),
                  before.const_data_ptr<std::int64_t>() + before.numel());
      std::sort(seen.begin(), seen.end());
      Indices each(kSamples);
      std::iota(each.begin(), each.end(), 0);
      EXPECT_EQ(seen, each) << world << " ranks";
      write_torch_file(folder.path("resumed.pt"), training.state());
      if (world == kResumedWorld) {
        EXPECT_TRUE(same_files(whole, folder.path("resumed.pt"))) << "the same bits as without the stop";
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
