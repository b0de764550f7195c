#include "lockstep/elastic/elastic_training.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>

#include "c10d/backend/group_errors.h"
#include "elastic_parts.h"
#include "engine/core/failure.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/collective_step.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/reconfigure.h"
#include "nn/batch_norm/synchronised_batch_norm.h"
#include "transfer.h"

namespace lockstep {
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

// Of a rank, or of the store that it served. A rank that waits for one that has seen the death is told to form the
// world anew too.
bool tells_of_death(const std::exception& error) {
  const ErrorCode code = error_code(error);
  if (code == ErrorCode::kAborted) return plain_text(error).find(comm::kFormedAnew) != std::string::npos;
  return code == ErrorCode::kPeerFailed || code == ErrorCode::kUnavailable;
}

// `number`: of a micro-batch; -1: of what all ranks do alike.
std::uint64_t seed_of(std::uint64_t seed, std::int64_t step, std::int64_t number) {
  return spread(spread(seed ^ spread(static_cast<std::uint64_t>(step))) ^ static_cast<std::uint64_t>(number));
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return plain_text(known);
  }
}

// Runs `what`. Returns the error if it tells of a death, and throws every other one.
template <typename What>
std::exception_ptr unless_a_rank_dies(What&& what) {
  try {
    what();
  } catch (const std::exception& error) {
    if (!tells_of_death(error)) throw;
    return std::current_exception();
  }
  return nullptr;
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
  if (dynamic_cast<const CollectiveStep*>(&optimizer) != nullptr) {
    throw ArgumentError(ErrorCode::kUnsupported,
                        "ElasticTraining: expected an optimizer whose step() does not communicate, found a SharedStep "
                        "or a sharded optimizer (ZeroRedundancyOptimizer): a rank that dies in it leaves the others "
                        "without a whole state. Use the plain optimizer, or restart such a training from a checkpoint "
                        "(lockstep run --max-restarts)");
  }
  checkpoint::Checkpoint().add_optimizer(optimizer);  // throws for a class whose state it cannot hold
  parts_.push_back({.optimizer = &optimizer});
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
  too_few_ = false;
  compared_ = false;
  caught_up_ = false;  // an earlier run() may have ended after different steps
  if (newcomers_ != nullptr) newcomers_->begin(world_size_);
  try {
    while (true) {
      const std::exception_ptr error = unless_a_rank_dies([&] { go_on(functions); });
      if (error != nullptr && too_few_) std::rethrow_exception(error);
      if (error == nullptr || !recover(error)) break;
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
  begin_world();
  while (true) {
    if (after_ < done_) {
      last_ = steps_;
      if (functions.after_step) functions.after_step(done_);
      after_ = done_;
    }
    if (done_ >= last_) break;
    while (admit(std::chrono::milliseconds(0))) begin_world();  // a newcomer asks too, when it has begun
    take_step(functions);
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
  whole_ = false;
  if (options_.seed) torch::manual_seed(seed_of(*options_.seed, done_, -1));
  functions.update(done_);
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
}

// False: this rank has done all, and the others have left, or are in a later run().
bool ElasticTraining::recover(const std::exception_ptr& why) {
  last_death_ = text_of(why);
  log::info(fmt::format("ElasticTraining: after {} steps: {}", done_, last_death_));
  note_changes();
  caught_up_ = false;
  bool lost = false;
  while (true) {
    try {
      reconfigure({.timeout = options_.timeout});
    } catch (const c10::Error& error) {
      if (!whole_ || done_ < last_ || after_ < done_) throw;
      log::info(fmt::format("ElasticTraining: ends without the others: {}", plain_text(error)));
      return false;
    }
    ++recoveries_;
    if (newcomers_ && std::exchange(newcomers_->are_joining, false)) lost = true;  // also one of the last time round
    lost = lost || get_world_size() < world_size_;
    world_size_ = get_world_size();
    Survey all;
    std::exception_ptr again = unless_a_rank_dies([&] { all = survey(lost); });
    if (again == nullptr) {
      if (all.has_ended(all.ranks[static_cast<std::size_t>(get_rank())])) return false;
      require_whole(all);
      if (all.has_several_runs()) return true;
      if (!all.lost) refuse_repetition(all, why);
      if (!all.is_over()) again = unless_a_rank_dies([&] { admit(options_.newcomer_timeout); });
    }
    if (again == nullptr) return true;
    log::info(fmt::format("ElasticTraining: once more: {}", text_of(again)));
  }
}

// When a run begins, and after the world was formed anew.
void ElasticTraining::catch_up() {
  if (caught_up_) return;
  const std::int64_t done_before = done_;
  const Survey all = survey(/*lost=*/false);
  require_fresh_store(all);
  require_alike(all);
  require_whole(all);
  require_same_start(all);
  // A rank that has died at the end of the last run() is replaced before the first step of this one.
  if (all.has_steps_left() && admit(time_for_newcomers())) return catch_up();
  require_enough(all);
  bring_up_to_date(all);
  started_ = caught_up_ = true;
  if (get_rank() != 0 || recoveries_ == 0) return;
  log::warning(fmt::format("ElasticTraining: {} ranks go on after {} steps{}", get_world_size(), done_,
                           done_ > done_before ? ", the last of which rank 0 has from another rank" : ""));
}

// A rank that is not whole, or has done a step less, gets all state from the first rank that is whole and furthest. Its
// generators have drawn what they draw in the step that the others have done, so they stay.
void ElasticTraining::bring_up_to_date(const Survey& all) {
  if (snapshot_->begun && done_ == all.furthest) put_back();
  const int rank = get_rank();
  if (rank == all.source) {
    for (int other = 0; other < get_world_size(); ++other) {
      if (all.is_behind(other)) elastic_detail::send_state(parts_, other);
    }
  } else if (all.is_behind(rank)) {
    whole_ = false;  // an error leaves it half old, half new
    elastic_detail::receive_state(parts_, all.source);
    clear_gradients();
    snapshot_->begun = false;
    whole_ = true;
    if (done_ < 0) {  // a newcomer: the others know more, for example after how many steps they have ended
      steps_ = all.ranks[static_cast<std::size_t>(all.source)].steps;
      last_ = all.ranks[static_cast<std::size_t>(all.source)].last;
    }
    done_ = all.furthest;
  }
  for (const Cursor& cursor : cursors_) cursor.load(cursor.state());  // this rank's micro-batches may be others now
  after_ = done_;
  for (const Survey::Rank& one : all.ranks) {
    if (!one.is_newcomer()) after_ = std::min(after_, one.after);
  }
}

}  // namespace lockstep
