#include "elastic_fit.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/arithmetic.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/launch/newcomer.h"
#include "nn/all_ranks.h"

namespace lockstep {

// The fields that a newcomer takes over from a living rank. The times of a step are of the rank that has made it.
static auto fields(StepReport& s) {
  return std::tie(s.epoch, s.step, s.batch, s.batches, s.samples, s.loss, s.learning_rate, s.gradient_norm, s.skipped,
                  s.seconds);
}
static auto fields(Evaluation& e) {
  return std::tie(e.epoch, e.step, e.samples, e.loss, e.accuracies, e.confusion, e.is_best, e.seconds);
}
static auto fields(TrainingResult& r) {
  return std::tie(r.end, r.loss, r.evaluation, r.best_metric);
}
namespace trainer_detail {
static auto fields(Moment& m) {
  return std::tie(m.progress, m.batches, m.batch, m.samples, m.asked, m.skipped, m.step, m.result);
}
}  // namespace trainer_detail

namespace {

using trainer_detail::Clock;
using trainer_detail::Moment;
using trainer_detail::seconds_since;

torch::Tensor as_bytes(Moment moment) {
  // The ranks may use devices with different numbers.
  if (moment.step.loss.defined()) moment.step.loss = moment.step.loss.cpu();
  const std::string text = encode_object(moment);
  return torch::from_blob(const_cast<char*>(text.data()), {static_cast<std::int64_t>(text.size())}, torch::kByte)
      .clone();
}

Moment from_bytes(const torch::Tensor& bytes) {
  const torch::Tensor local = bytes.contiguous();
  return decode_object<Moment>(
      {static_cast<const char*>(local.const_data_ptr()), static_cast<std::size_t>(local.numel())});
}

ElasticOptions with_seed(ElasticOptions options, std::uint64_t seed, std::int64_t first_step) {
  options.seed = seed;
  options.first_step = first_step;
  return options;
}

}  // namespace

namespace trainer_detail {

bool awaited_by_launcher(const TrainerOptions& options) {
  if (!options.elastic || options.elastic->newcomers != nullptr) return false;
  const auto rank = launch::awaited_rank();
  if (!rank.ok()) throw_status(rank.status(), "Trainer");
  return rank.value().has_value();
}

void check_elastic(const TrainerOptions& options) {
  const bool has_store = options.elastic && (options.elastic->newcomers != nullptr || awaited_by_launcher(options));
  TORCH_CHECK_VALUE(!options.newcomer || has_store,
                    "Trainer: newcomer needs elastic, with the store of the newcomers; a process that the launcher has "
                    "started as a newcomer needs elastic alone");
  if (!options.elastic) return;
  const ElasticOptions& elastic = *options.elastic;
  TORCH_CHECK_VALUE(!elastic.rebuild && elastic.micro_batches == 0 && !elastic.seed && elastic.first_step == 0,
                    "Trainer: rebuild, micro_batches, seed and first_step of elastic are the Trainer's own: leave them "
                    "as they are");
  if (options.comm_hook == nullptr) return;
  throw ArgumentError(ErrorCode::kUnsupported,
                      "Trainer: elastic cannot be used with comm_hook: a newcomer has none of what the hook has kept");
}

}  // namespace trainer_detail

Trainer::Loop::Elastic::Elastic(Loop& loop, Feed& train, Feed* evaluation)
    : loop_(loop),
      train_(train),
      evaluation_(evaluation),
      options_(loop.options_),
      training_([&] {
        ElasticOptions options = with_seed(*loop.options_.elastic, loop.options_.seed, loop.progress().step);
        options.rebuild = [this] { rebuild(); };
        return options;
      }()),
      epoch_start_(Clock::now()) {
  now_.progress = loop.progress();
  now_.batches = trainer_detail::limited(train.loader().size(), loop.options_);
  now_.batch = train.loader().size() - train.loader().batches_left();
  epoch_.epoch = -1;
}

void Trainer::Loop::Elastic::add_states() {
  training_.add_model(*loop_.model_);
  training_.add_optimizer(loop_.optimizer_);
  if (options_.scheduler) training_.add_scheduler(*options_.scheduler);
  training_.add_loader(train_);
  training_.add_state([this](checkpoint::Checkpoint& state) { save_moments(state); },
                      [this](const checkpoint::Checkpoint& state) { load_moments(state); });
}

void Trainer::Loop::Elastic::save_moments(checkpoint::Checkpoint& state) const {
  state.add_tensors("moments", {{"now", as_bytes(now_)}, {"before", as_bytes(before_)}});
  state.set("folder_is_own", loop_.state_.folder_is_own() ? 1 : 0);
  state.set("epoch.seconds", seconds_since(epoch_start_));
  state.set("epoch.input_seconds", epoch_.input_seconds);
  state.set("epoch.communication_seconds", epoch_.communication_seconds);
  if (auto& averages = loop_.step_.averages(); averages && averages->updates() > 0) {
    state.add_tensors("averages", averages->tensors());
    state.set("updates", averages->updates());
  }
  if (auto& scaler = loop_.step_.scaler()) {
    for (const auto& [name, value] : scaler->state_dict()) state.set("scaler." + name, value);
  }
}

void Trainer::Loop::Elastic::load_moments(const checkpoint::Checkpoint& state) {
  const auto moments = state.get_tensors("moments");
  before_ = from_bytes(moments.at("before"));
  restore(from_bytes(moments.at("now")));
  // The times that the dead rank had in this epoch are lost. Those of a survivor are alike.
  if (now_.batch > 0 && epoch_.epoch != now_.progress.epoch) {
    begin_epoch();
    epoch_.input_seconds = state.get_double("epoch.input_seconds");
    epoch_.communication_seconds = state.get_double("epoch.communication_seconds");
    epoch_start_ -=
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(state.get_double("epoch.seconds")));
  }
  loop_.state_.set_folder_is_own(state.get_int("folder_is_own") != 0);
  if (auto& averages = loop_.step_.averages(); averages && state.has("updates"))
    averages->load(state.get_tensors("averages"), state.get_int("updates"));
  if (auto& scaler = loop_.step_.scaler()) {
    std::map<std::string, double> values = scaler->state_dict();
    for (auto& [name, value] : values) value = state.get_double("scaler." + name);
    scaler->load_state_dict(values);
  }
}

void Trainer::Loop::Elastic::restore(const Moment& moment) {
  now_ = moment;
  loop_.state_.progress = moment.progress;
  loop_.asked_ = moment.asked;
}

TrainingResult Trainer::Loop::Elastic::fit() {
  add_states();
  if (options_.newcomer && !training_.join()) {
    TrainingResult none;
    none.end = TrainingEnd::kNotNeeded;
    return none;
  }
  const ElasticFunctions functions{.gradients = [this](ElasticStep& step) { compute(step); },
                                   .update = [this](std::int64_t) { update(); },
                                   .after_step = [this](std::int64_t) { after_step(); }};
  if (!options_.newcomer) {
    if (const auto over = begin()) {
      training_.run(loop_.progress().step, functions);  // makes no step: newcomers learn that they are not needed
      return loop_.finish(*over, std::move(now_.result));
    }
    now_.progress = loop_.progress();
  }
  loop_.model_->train();
  training_.run(loop_.progress().step + steps_left(), functions);
  hold_position();
  return loop_.finish(now_.result.end, std::move(now_.result));
}

// What is due before the first step. Whether the training ends with it, and why.
std::optional<TrainingEnd> Trainer::Loop::Elastic::begin() {
  const auto over = loop_.end_after_epoch(train_, evaluation_, now_.result);
  if (over || now_.batch < now_.batches) return over;
  // The checkpoint is of the middle of an epoch that is over with this limit_batches.
  finish_pass();
  close_epoch();
  return loop_.end_after_epoch(train_, evaluation_, now_.result);
}

std::int64_t Trainer::Loop::Elastic::steps_of(std::int64_t batches) const {
  return ceil_divide(batches, options_.accumulation);
}

std::int64_t Trainer::Loop::Elastic::steps_left() const {
  return steps_of(now_.batches - now_.batch) + (options_.epochs - now_.progress.epoch - 1) * steps_of(now_.batches);
}

void Trainer::Loop::Elastic::rebuild() {
  const bool has_joined = !std::exchange(rebuilt_, true) && options_.newcomer;
  loop_.vote_.forget();
  // The Trainer's constructor has made DistributedDataParallel for the first world.
  if (!has_joined && training_.recoveries() == 0) return;
  loop_.step_.rebuild(loop_.progress().step, now_.skipped);
  loop_.state_.rebuild();
  if (evaluation_ != nullptr) evaluation_->take_share(get_rank(), get_world_size());
  tell_of_recovery(has_joined);
}

void Trainer::Loop::Elastic::tell_of_recovery(bool has_joined) {
  const bool after_death = std::exchange(recoveries_told_, training_.recoveries()) != training_.recoveries();
  if (!options_.callbacks.on_recovery) return;
  options_.callbacks.on_recovery({.epoch = loop_.progress().epoch,
                                  .step = loop_.progress().step,
                                  .has_joined = has_joined,
                                  .reason = after_death ? training_.last_death() : std::string()});
}

void Trainer::Loop::Elastic::begin_epoch() {
  if (epoch_.epoch == now_.progress.epoch) return;
  epoch_ = EpochReport{.epoch = now_.progress.epoch};
  epoch_start_ = Clock::now();
}

void Trainer::Loop::Elastic::compute(ElasticStep& step) {
  begin_epoch();
  parts_ = static_cast<int>(std::min(options_.accumulation, now_.batches - now_.batch));
  MicroBatch micro_batch;
  report_ = loop_.step_.compute(train_, step.parts() * parts_, parts_ / step.weight(), [&](int pass) {
    if (pass % parts_ == 0) micro_batch = step.begin(pass / parts_);
    train_.take(micro_batch);
  });
  const int pending = options_.handle_signals ? trainer_detail::StopSignals::pending() : 0;
  const Average mine = loop_.step_.step_losses();
  const double asked = pending != 0 ? 1 + pending : (loop_.stop_ ? 1 : 0);
  totals_ = {0, 0, 0};
  for (const auto& row : nn_detail::rows_of_all_ranks({mine.sum(), mine.count(), asked}, nullptr)) {
    totals_[0] += row[0];
    totals_[1] += row[1];
    totals_[2] = std::max(totals_[2], row[2]);
  }
}

void Trainer::Loop::Elastic::update() {
  loop_.step_.apply(report_);
  trainer_detail::Progress& progress = now_.progress;
  if (options_.scheduler && options_.scheduler_interval == TrainerOptions::Interval::kStep) options_.scheduler->step();
  now_.batch += parts_;
  if (!report_.skipped) progress.losses.add(totals_[0], totals_[1]);
  now_.samples += static_cast<std::int64_t>(totals_[1]);
  now_.skipped = report_.skipped ? now_.skipped + 1 : 0;
  now_.asked = std::max(now_.asked, static_cast<int>(totals_[2]));
  report_.epoch = progress.epoch;
  report_.step = ++progress.step;
  report_.batch = now_.batch;
  report_.batches = now_.batches;
  epoch_.input_seconds += report_.input_seconds;
  epoch_.communication_seconds += report_.communication_seconds;
  epoch_.learning_rate = report_.learning_rate;
  now_.step = report_;
  if (now_.batch >= now_.batches) finish_pass();
  before_ = now_;
  loop_.state_.progress = progress;
}

// All batches of the present epoch are done.
void Trainer::Loop::Elastic::finish_pass() {
  if (options_.scheduler && options_.scheduler_interval == TrainerOptions::Interval::kEpoch) options_.scheduler->step();
  data::SamplerState next = train_.state();
  if (next.epoch != now_.progress.epoch) return;
  next.epoch = now_.progress.epoch + 1;  // limit_batches has ended it
  next.consumed = 0;
  train_.load_state(next);
}

void Trainer::Loop::Elastic::after_step() {
  restore(before_);
  if (options_.callbacks.on_step_end) options_.callbacks.on_step_end(now_.step);
  if (now_.batch >= now_.batches) {
    end_epoch();
  } else if (loop_.asked_ != 0) {
    save_within_epoch();
    end(TrainingEnd::kInterrupted);
  } else if (options_.checkpoint_every_steps > 0 && loop_.progress().step % options_.checkpoint_every_steps == 0) {
    save_within_epoch();
  }
  now_.progress = loop_.progress();
  now_.asked = loop_.asked_;
}

void Trainer::Loop::Elastic::save_within_epoch() {
  loop_.step_.check_parameters();
  hold_position();
  loop_.state_.save(train_.loader());
}

// The loader that the program has given goes where the micro-batches are.
void Trainer::Loop::Elastic::hold_position() const {
  train_.loader().load_state(train_.state());
}

void Trainer::Loop::Elastic::end_epoch() {
  close_epoch();
  if (const auto over = loop_.end_after_epoch(train_, evaluation_, now_.result)) end(*over);
  loop_.model_->train();
}

void Trainer::Loop::Elastic::close_epoch() {
  loop_.step_.check_parameters();
  EpochReport report = epoch_;
  report.epoch = loop_.progress().epoch;
  report.step = loop_.progress().step;
  report.learning_rate = now_.step.learning_rate;
  report.loss = loop_.progress().losses.value();
  report.samples = now_.samples;
  report.seconds = seconds_since(epoch_start_);
  loop_.end_epoch(train_, evaluation_, report, now_.result);
  now_.batch = 0;
  now_.samples = 0;
}

void Trainer::Loop::Elastic::end(TrainingEnd why) {
  now_.result.end = why;
  loop_.state_.wait();
  training_.end();
}

}  // namespace lockstep
