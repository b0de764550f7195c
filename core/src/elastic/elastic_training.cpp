#include "lockstep/elastic/elastic_training.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>

#include "c10d/backend/group_errors.h"
#include "deaths.h"
#include "elastic_parts.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/collective_step.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/reconfigure.h"
#include "nn/batch_norm/synchronised_batch_norm.h"
#include "transfer.h"

namespace lockstep {

using elastic_detail::text_of;
using elastic_detail::unless_a_rank_dies;

namespace {

// The last step of SplitMix64, which spreads neighbouring numbers.
std::uint64_t spread(std::uint64_t number) {
  number += 0x9e3779b97f4a7c15U;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9U;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebU;
  return number ^ (number >> 31);
}

// How many calls of run() have ended in this process, in whichever training: a rank may notice a death at the end of
// one when another rank is in the next one already.
std::int64_t runs_ended = 0;

// `number`: of a micro-batch; -1: of what all ranks do alike.
std::uint64_t seed_of(std::uint64_t seed, std::int64_t step, std::int64_t number) {
  return spread(spread(seed ^ spread(static_cast<std::uint64_t>(step))) ^ static_cast<std::uint64_t>(number));
}

}  // namespace

ElasticStep::ElasticStep(std::int64_t number, int rank, int world_size, int micro_batches,
                         std::optional<std::uint64_t> seed)
    : number_(number),
      count_(micro_batches),
      seed_(seed),
      weight_(static_cast<double>(world_size) / static_cast<double>(micro_batches)) {
  for (int one = rank; one < micro_batches; one += world_size) micro_batches_.push_back(one);
}

MicroBatch ElasticStep::begin(int part) const {
  TORCH_CHECK_VALUE(part >= 0 && part < parts(), "ElasticStep: expected a part from 0 to ", parts() - 1, ", got ",
                    part);
  const MicroBatch which{number_, micro_batches_[static_cast<std::size_t>(part)], count_};
  if (seed_) torch::manual_seed(seed_of(*seed_, number_, which.number));
  return which;
}

ElasticTraining::ElasticTraining(ElasticOptions options)
    : options_(std::move(options)),
      micro_batches_(options_.micro_batches),
      snapshot_(std::make_unique<FailedStep>()),
      done_(options_.first_step),
      after_(options_.first_step) {
  TORCH_CHECK_VALUE(options_.min_ranks >= 1, "ElasticTraining: min_ranks must be at least 1, got ", options_.min_ranks);
  TORCH_CHECK_VALUE(options_.micro_batches >= 0,
                    "ElasticTraining: micro_batches must be at least 1, or 0 for one of "
                    "each rank, got ",
                    options_.micro_batches);
  TORCH_CHECK_VALUE(options_.first_step >= 0, "ElasticTraining: first_step must be at least 0, got ",
                    options_.first_step);
  find_room();
}

ElasticTraining::~ElasticTraining() {
  if (newcomers_ == nullptr || (!newcomers_->is_over && !started_)) return;
  try {
    // After an exception of the program the others may go on. They do not where all have had one.
    if (newcomers_->is_over || newcomers_->room.leave(generation_) >= world_size_) newcomers_->room.close();
  } catch (const std::exception& error) {
    log::warning(
        fmt::format("processes that wait to join the training were not told that it is over: {}", plain_text(error)));
  }
}

void ElasticTraining::add_model(torch::nn::Module& model) {
  if (const auto layers = nn_detail::synchronised_layers(model); !layers.empty()) {
    throw ArgumentError(ErrorCode::kUnsupported,
                        fmt::format("ElasticTraining: expected a model without synchronised batch normalisation, found "
                                    "layer '{}', which needs all ranks in each forward pass: after a death, ranks "
                                    "compute different numbers of micro-batches. Use plain batch normalisation",
                                    layers.front().name));
  }
  parts_.push_back({.model = &model});
  models_.push_back(&model);
}

void ElasticTraining::add_optimizer(torch::optim::Optimizer& optimizer) {
  if (auto* const collective = dynamic_cast<CollectiveStep*>(&optimizer)) {
    add_collective(*collective);
  } else {
    checkpoint::Checkpoint().add_optimizer(optimizer);  // throws for a class whose state it cannot hold
    parts_.push_back({.optimizer = &optimizer});
  }
  optimizers_.push_back(&optimizer);
}

void ElasticTraining::add_state(std::function<void(checkpoint::Checkpoint& state)> save,
                                std::function<void(const checkpoint::Checkpoint& state)> restore) {
  TORCH_CHECK_VALUE(save && restore, "ElasticTraining: add_state needs both functions");
  parts_.push_back({.save = std::move(save), .restore = std::move(restore), .is_programs = true});
}

void ElasticTraining::add_compared(std::function<void(checkpoint::Checkpoint& state)> save,
                                   std::function<void(const checkpoint::Checkpoint& state)> restore) {
  parts_.push_back({.save = std::move(save), .restore = std::move(restore)});
}

void ElasticTraining::add_cursor(Cursor cursor) {
  add_compared([cursor](checkpoint::Checkpoint& state) { state.set("cursor", data::to_string(cursor.state())); },
               [cursor](const checkpoint::Checkpoint& state) {
                 cursor.load(data::sampler_state_from_string(state.get_text("cursor")));
               });
  cursors_.push_back(std::move(cursor));
}

void ElasticTraining::run(std::int64_t steps, const ElasticFunctions& functions) {
  TORCH_CHECK_VALUE(functions.gradients && functions.update, "ElasticTraining: run() needs gradients and update");
  // All ranks have done them. A newcomer's program makes each call that the others have made before it came.
  if (finished_ && steps <= done_) return;
  finished_ = false;
  if (snapshot_->begun) put_back();  // an earlier run() ended in the middle of a step
  run_ = runs_ended + 1;
  if (!started_ && done_ >= 0) {
    look_at_store();
    note_start();
  }
  steps_ = last_ = steps;
  world_size_ = get_world_size();
  if (micro_batches_ == 0) micro_batches_ = world_size_;
  has_ended_ = false;
  compared_ = false;
  caught_up_ = false;  // an earlier run() may have ended after different steps
  if (newcomers_ != nullptr) newcomers_->begin(world_size_);
  try {
    while (true) {
      const std::exception_ptr error = unless_a_rank_dies([&] { go_on(functions); });
      if (error != nullptr && has_ended_) std::rethrow_exception(error);
      if (error == nullptr || !recover(error, functions)) break;
    }
  } catch (const std::exception& error) {
    note_changes();
    const ErrorCode code = error_code(error);
    if (newcomers_ != nullptr && (code == ErrorCode::kTimeout || code == ErrorCode::kAborted)) {
      end_for_newcomers();
      // At once: an exception that nobody catches ends the process without destructors.
      ask_store([](elastic_detail::WaitingRoom& room) { room.close(); });
    }
    throw;
  }
  end_for_newcomers();
  tell_launcher();
  finished_ = true;
  runs_ended = run_;
}

// All ranks begin with the state of rank 0, whatever dies meanwhile.
void ElasticTraining::note_start() {
  hash_ = 0;
  start_error_ = nullptr;
  try {
    hash_ = elastic_detail::hash_of_state(parts_);
  } catch (const std::exception&) {
    start_error_ = std::current_exception();  // require_alike() throws it, where the others learn of it
  }
  first_hash_ = get_rank() == 0 && whole_ ? hash_ : 0;
}

// They are told when this is destroyed.
void ElasticTraining::end_for_newcomers() const {
  if (newcomers_ != nullptr) newcomers_->is_over = true;
}

// An optimizer's step in `gradients` cannot be put back.
void ElasticTraining::note_changes() {
  if (snapshot_->begun && snapshot_->of_models.parameters_changed(models_)) whole_ = false;
}

void ElasticTraining::go_on(const ElasticFunctions& functions) {
  while (true) {
    if (!caught_up_) begin_world();
    if (after_ < done_) {
      last_ = steps_;
      if (functions.after_step) functions.after_step(done_);
      after_ = done_;
    }
    if (done_ >= last_) break;
    while (admit(std::chrono::milliseconds(0))) begin_world();  // a newcomer asks too, when it has begun
    take_step(functions);
    if (!caught_up_) admit(options_.newcomer_timeout);  // ranks have died in its update
  }
  barrier();  // a rank may have to do its last step again, and needs the others for it
}

void ElasticTraining::begin_world() {
  catch_up();
  const int size = get_world_size();
  if (size > micro_batches_) {
    end_alike();
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("ElasticTraining: expected at least one micro-batch of a step for each rank, found "
                                    "{} for {} ranks: set ElasticOptions::micro_batches",
                                    micro_batches_, size));
  }
  world_size_ = size;
  if (options_.rebuild) options_.rebuild();
  if (newcomers_ == nullptr) return;
  newcomers_->are_joining = false;
  newcomers_->description.clear();
}

void ElasticTraining::take_step(const ElasticFunctions& functions) {
  snapshot_->of_models.take(models_, !options_.seed);
  snapshot_->cursors.clear();
  for (const Cursor& cursor : cursors_) snapshot_->cursors.push_back(cursor.state());
  clear_gradients();
  snapshot_->begun = true;
  ElasticStep step(done_, get_rank(), world_size_, micro_batches_, options_.seed);
  functions.gradients(step);
  if (sharded_ != nullptr) {
    sharded_->is_ready = true;
    barrier();
  }
  make_update(functions);
}

void ElasticTraining::make_update(const ElasticFunctions& functions) {
  whole_ = false;
  if (options_.seed) torch::manual_seed(seed_of(*options_.seed, done_, -1));
  if (sharded_ == nullptr) {
    functions.update(done_);
  } else {
    make_sharded_update(functions);
  }
  whole_ = true;
  snapshot_->begun = false;
  ++done_;
}

void ElasticTraining::clear_gradients() {
  for (torch::optim::Optimizer* const optimizer : optimizers_) optimizer->zero_grad();
  for (torch::nn::Module* const model : models_) model->zero_grad();
}

void ElasticTraining::put_back() {
  snapshot_->of_models.put_back(models_);
  for (std::size_t i = 0; i < cursors_.size(); ++i) cursors_[i].load(snapshot_->cursors[i]);
  clear_gradients();
  snapshot_->begun = false;
  if (sharded_ != nullptr) sharded_->is_ready = false;
}

}  // namespace lockstep
