#include "loop.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <unordered_set>

#include "base/printable.h"
#include "elastic_fit.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/nn/memory_format.h"
#include "nn/all_ranks.h"
#include "nn/device_backend.h"
#include "nn/same_on_all_ranks.h"

namespace lockstep {
namespace {

using trainer_detail::Clock;
using trainer_detail::seconds_since;
using trainer_detail::StopSignals;

void check_optimizer(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> trained;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) {
      if (!tensor.defined()) continue;  // all undefined tensors have the same address
      TORCH_CHECK_VALUE(trained.insert(tensor.unsafeGetTensorImpl()).second,
                        "Trainer: the optimizer has a parameter of shape ", tensor.sizes(),
                        " twice, so each step would change it twice. The model has it under two names (tied "
                        "parameters), and LibTorch's parameters() repeats it; make the optimizer from "
                        "lockstep::distinct_parameters(model)");
    }
  }
  const std::vector<torch::Tensor> parameters = model.parameters();
  TORCH_CHECK_VALUE(std::any_of(parameters.begin(), parameters.end(),
                                [&](const auto& one) { return trained.contains(one.unsafeGetTensorImpl()); }),
                    "Trainer: the optimizer has none of the model's parameters; make it from this model's "
                    "parameters()");
}

void check_options(const TrainerOptions& options) {
  const auto least = [](const char* name, auto value, auto bound) {
    TORCH_CHECK_VALUE(value >= bound, "Trainer: ", name, " must be at least ", bound, ", got ", value);
  };
  least("epochs", options.epochs, 0);
  least("accumulation", options.accumulation, 1);
  least("limit_batches", options.limit_batches, 0);
  least("compare_every", options.compare_every.value_or(0), 0);
  least("evaluate_every", options.evaluate_every, 1);
  least("patience", options.patience, 0);
  least("checkpoint_every_steps", options.checkpoint_every_steps, 0);
  if (!options.checkpoint_dir.empty()) least("keep_last", options.keep_last, 1);
  least("clip_grad_norm", options.clip_grad_norm, 0.0);
  TORCH_CHECK_VALUE(options.ema_decay >= 0 && options.ema_decay < 1, "Trainer: ema_decay must be in [0, 1), got ",
                    options.ema_decay);
  TORCH_CHECK_VALUE(!options.top_k.empty(), "Trainer: top_k is empty");
  TORCH_CHECK_VALUE(!options.resume || !options.checkpoint_dir.empty(), "Trainer: resume needs checkpoint_dir");
  const std::filesystem::path folder = options.model_file.parent_path();
  std::error_code ignored;
  TORCH_CHECK_VALUE(get_rank() != 0 || folder.empty() || std::filesystem::is_directory(folder, ignored),
                    "Trainer: model_file cannot be written: ", folder.native(), " is no folder");
  trainer_detail::check_elastic(options);
  TORCH_CHECK_VALUE(!options.ddp.process_group,
                    "Trainer: it trains on all ranks of the world; leave "
                    "ddp.process_group empty");
}

// What must be the same on all ranks, a line each. Else they would wait for one another, stop at different epochs, or
// train different weights.
std::string description(const TrainerOptions& options, torch::Device device) {
  std::string text = fmt::format(
      "device: {}\nepochs: {}\naccumulation: {}\nlimit_batches: {}\nclip_grad_norm: {}\nema_decay: {}\n"
      "precision: {}\nchannels_last: {}\nfused: {}\nnon_finite: {}\nevaluate_every: {}\nmonitor: {}\ntop_k: "
      "{}\nconfusion_classes: {}\n"
      "patience: {}\nmin_delta: {}\ncheckpoints: {}\ncheckpoint_every_steps: {}\nresume: {}\n",
      c10::DeviceTypeName(device.type(), /*lower_case=*/true), options.epochs, options.accumulation,
      options.limit_batches, options.clip_grad_norm, options.ema_decay, static_cast<int>(options.precision),
      options.channels_last, options.fused, options.non_finite ? static_cast<int>(*options.non_finite) : -1,
      options.evaluate_every, static_cast<int>(options.monitor), fmt::join(options.top_k, ", "),
      options.confusion_classes, options.patience, options.min_delta, !options.checkpoint_dir.empty(),
      options.checkpoint_every_steps, options.resume);
  text +=
      fmt::format("compare_every: {}\nelastic: {}\n", options.compare_every.value_or(-1), options.elastic.has_value());
  const bool by_step = options.scheduler_interval == TrainerOptions::Interval::kStep;
  text += options.scheduler
              ? c10::str("scheduler: of each ", by_step ? "step" : "epoch", ", ", options.scheduler->state_dict(), "\n")
              : "scheduler: none\n";
  for (std::size_t i = 0; i < options.classes.size(); ++i) {
    text += fmt::format("class {}: {}\n", i, printable(options.classes[i]));
  }
  return text;
}

// Moves the model to the device. What is wrong on one rank alone is an error on all of them. To be called before
// anything else that is collective.
std::shared_ptr<torch::nn::Module> prepared(const std::shared_ptr<torch::nn::Module>& model,
                                            const torch::optim::Optimizer& optimizer, const TrainerOptions& options,
                                            torch::Device device) {
  const auto own_lines = [&] {
    TORCH_CHECK_VALUE(model, "Trainer: the model is null");
    check_options(options);
    check_optimizer(*model, optimizer);
    model->to(device);
    if (options.channels_last) to_memory_format(*model, torch::MemoryFormat::ChannelsLast);
    return description(options, device);
  };
  nn_detail::check_same_lines(nn_detail::DeviceBackend::for_host_data(nullptr, device), own_lines,
                              "Trainer needs the same options");
  return model;
}

TrainerOptions resolved(TrainerOptions options) {
  options.newcomer = options.newcomer || trainer_detail::awaited_by_launcher(options);
  return options;
}

}  // namespace

Trainer::Loop::Loop(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer,
                    TrainerOptions options)
    : model_(std::move(model)),
      optimizer_(optimizer),
      options_(resolved(std::move(options))),
      device_(options_.device.value_or(local_device())),
      step_(prepared(model_, optimizer_, options_, device_), optimizer_, options_, device_),
      state_(model_, optimizer_, options_, device_, step_) {}

void Trainer::Loop::start(Feed& train, Feed* evaluation) {
  const auto own_lines = [&] {
    TORCH_CHECK_VALUE(options_.patience == 0 || evaluation != nullptr,
                      "Trainer: patience needs evaluations; give fit a second loader");
    // An evaluation would move the training's place in its epoch, which checkpoints keep.
    TORCH_CHECK_VALUE(evaluation == nullptr || &evaluation->loader() != &train.loader(),
                      "Trainer: fit got the same loader for training and for evaluation; give the evaluation a loader "
                      "of its own (another DataLoader of the same dataset)");
    const std::int64_t batches = train.loader().size();
    TORCH_CHECK_VALUE(batches > 0, "Trainer: the training loader has no batch; with drop_last a rank needs at least ",
                      train.loader().batch_size(), " samples");
    return fmt::format("batches in an epoch: {}\nevaluation: {}\n", batches, evaluation != nullptr);
  };
  nn_detail::check_same_lines(nn_detail::DeviceBackend::for_host_data(nullptr, device_), own_lines,
                              "Trainer needs the same loaders, with equally many batches");
  if (started_) return;
  started_ = true;
  torch::manual_seed(options_.seed + static_cast<std::uint64_t>(get_rank()));
  if (options_.newcomer) return;  // it gets the state of another rank
  if (!options_.resume) {
    state_.begin_anew();
  } else if (state_.resume(train.loader()) && get_rank() == 0) {
    log::info(fmt::format("resumed at epoch {}, step {}", progress().epoch, progress().step));
  }
  step_.set_step(progress().step);
}

TrainingResult Trainer::Loop::fit(Feed& train, Feed* evaluation) {
  const StopSignals signals(options_.handle_signals);
  asked_ = 0;
  vote_.forget();
  start(train, evaluation);
  if (options_.elastic) return Elastic(*this, train, evaluation).fit();
  TrainingResult result;
  while (true) {
    if (const auto end = end_after_epoch(train, evaluation, result)) return finish(*end, std::move(result));
    EpochReport report;
    if (!train_epoch(train, report)) {
      state_.save(train.loader());
      hold(train);
      return finish(TrainingEnd::kInterrupted, std::move(result));
    }
    if (options_.scheduler && options_.scheduler_interval == TrainerOptions::Interval::kEpoch) {
      options_.scheduler->step();
    }
    end_epoch(train, evaluation, report, result);
  }
}

// Evaluates if an evaluation is due. Whether the training ends between two epochs, and why.
std::optional<TrainingEnd> Trainer::Loop::end_after_epoch(Feed& train, Feed* evaluation, TrainingResult& result) {
  if (state_.progress.evaluation_due && evaluation != nullptr) judge(train, *evaluation, result);
  // A training with nothing left to do is not interrupted, even if it was asked to stop meanwhile.
  if (!state_.progress.evaluation_due || evaluation == nullptr) {
    if (options_.patience > 0 && progress().not_better >= options_.patience) return TrainingEnd::kEarlyStopped;
    if (progress().epoch >= options_.epochs) return TrainingEnd::kFinished;
  }
  return asked_to_stop() ? std::optional(TrainingEnd::kInterrupted) : std::nullopt;
}

TrainingResult Trainer::Loop::finish(TrainingEnd end, TrainingResult result) {
  state_.wait();
  result.end = end;
  result.signal = end == TrainingEnd::kInterrupted ? asked_ - 1 : 0;
  result.epochs = progress().epoch;
  result.steps = progress().step;
  result.best_metric = progress().best;
  stop_ = false;
  return result;
}

// Collective: all ranks stop when one of them was asked to. Within an epoch, where steps follow, no rank waits for the
// others.
bool Trainer::Loop::asked_to_stop(bool within_epoch) {
  if (asked_ != 0) return true;
  const int pending = options_.handle_signals ? StopSignals::pending() : 0;
  const int mine = pending != 0 ? 1 + pending : (stop_ ? 1 : 0);
  asked_ = within_epoch ? vote_.after_step(mine) : vote_.now(mine);
  return asked_ != 0;
}

// Leaves the loop over the loader where it is, so that another fit() goes on from there. The same cursor on all ranks.
void Trainer::Loop::hold(Feed& feed) {
  std::string cursor = data::to_string(feed.loader().state());
  broadcast_object(cursor, 0);
  feed.end();
  feed.loader().load_state(data::sampler_state_from_string(cursor));
  held_ = std::move(cursor);
}

// Before a pass over all samples, of a loader that hold() may have left within an epoch. Returns whether it has.
bool Trainer::Loop::rewind(Feed& feed) const {
  data::DataLoaderBase& loader = feed.loader();
  const bool is_held = held_ && !loader.is_iterable() && data::to_string(loader.state()) == *held_;
  if (is_held) loader.set_epoch(loader.epoch() + 1);  // in the same epoch the cursor would stay
  loader.set_epoch(0);
  return is_held;
}

void Trainer::Loop::go_back(Feed& feed, bool is_held) const {
  if (is_held) feed.loader().load_state(data::sampler_state_from_string(*held_));
}

bool Trainer::Loop::train_epoch(Feed& feed, EpochReport& epoch) {
  const auto start = Clock::now();
  data::DataLoaderBase& loader = feed.loader();
  trainer_detail::Progress& progress = state_.progress;
  held_.reset();
  loader.set_epoch(progress.epoch);
  model_->train();
  StepReport last;
  const std::int64_t batches = trainer_detail::limited(loader.size(), options_);
  std::int64_t batch = loader.size() - loader.batches_left();
  double waited = 0;
  if (batch < batches) {
    feed.begin();
    waited = seconds_since(start);
  }
  bool stopped = false;
  std::int64_t samples = 0;
  while (batch < batches && !stopped) {
    const auto parts = static_cast<int>(std::min(options_.accumulation, batches - batch));
    StepReport report = step_.run(feed, parts);
    if (options_.scheduler && options_.scheduler_interval == TrainerOptions::Interval::kStep) {
      options_.scheduler->step();
    }
    batch += parts;
    report.epoch = progress.epoch;
    report.step = ++progress.step;
    report.batch = batch;
    report.batches = batches;
    report.input_seconds += waited;
    report.seconds += std::exchange(waited, 0.0);
    samples += report.samples;
    epoch.input_seconds += report.input_seconds;
    epoch.communication_seconds += report.communication_seconds;
    epoch.learning_rate = report.learning_rate;
    if (options_.callbacks.on_step_end) options_.callbacks.on_step_end(report);
    const auto asking = Clock::now();
    stopped = asked_to_stop(/*within_epoch=*/batch < batches);
    epoch.communication_seconds += seconds_since(asking);
    if (!stopped && batch < batches && options_.checkpoint_every_steps > 0 &&
        progress.step % options_.checkpoint_every_steps == 0) {
      step_.check_parameters();
      progress.losses.merge(step_.take_losses());
      state_.save(loader);
    }
  }
  step_.check_parameters();
  progress.losses.merge(step_.take_losses());
  if (batch < batches) return false;  // the cursor is the loader's present one
  feed.end();
  epoch.epoch = progress.epoch;
  epoch.step = progress.step;
  epoch.loss = trainer_detail::of_all(progress.losses).value();  // NaN where every step was skipped
  for (const double count : nn_detail::of_all_ranks(static_cast<double>(samples), nullptr)) {
    epoch.samples += static_cast<std::int64_t>(count);
  }
  epoch.seconds = seconds_since(start);
  return true;
}

void Trainer::Loop::end_epoch(Feed& feed, Feed* evaluation, const EpochReport& report, TrainingResult& result) {
  trainer_detail::Progress& progress = state_.progress;
  result.loss = report.loss;
  feed.loader().set_epoch(++progress.epoch);
  progress.losses = Average();
  progress.evaluation_due =
      evaluation != nullptr && (progress.epoch % options_.evaluate_every == 0 || progress.epoch == options_.epochs);
  if (options_.callbacks.on_epoch_end) options_.callbacks.on_epoch_end(report);
  if (evaluation == nullptr) state_.save_model(report.epoch, nullptr);
  // Before the evaluation, which may fail. After that, and after a stop, it is made when the training is resumed.
  state_.save(feed.loader());
  if (progress.evaluation_due) asked_to_stop();
}

double Trainer::Loop::monitored(const Evaluation& evaluation) const {
  if (options_.monitor == Monitor::kLoss) return evaluation.loss;
  TORCH_CHECK_VALUE(!evaluation.accuracies.empty(),
                    "Trainer: monitor is kAccuracy, but the step function gives no scores in an evaluation; return "
                    "them in StepOutput, or monitor kLoss");
  return evaluation.accuracies[0];
}

// Evaluates, remembers whether that was the best, and saves this too.
void Trainer::Loop::judge(Feed& train, Feed& evaluation, TrainingResult& result) {
  if (asked_ != 0) return;  // the state is saved, and says that an evaluation is due
  trainer_detail::Progress& progress = state_.progress;
  Evaluation found = evaluate(evaluation);
  found.epoch = progress.epoch - 1;
  const double metric = monitored(found);
  const double sign = options_.monitor == Monitor::kLoss ? -1.0 : 1.0;
  found.is_best = std::isfinite(metric) && (!progress.best || sign * metric > sign * *progress.best);
  // Steps of less than min_delta add up: they are measured from the last one that was enough.
  const bool better =
      std::isfinite(metric) && (!progress.to_beat || sign * metric > sign * *progress.to_beat + options_.min_delta);
  progress.not_better = better ? 0 : progress.not_better + 1;
  if (better) progress.to_beat = metric;
  if (found.is_best) progress.best = metric;
  progress.evaluation_due = false;
  progress.evaluated = progress.epoch;
  if (options_.callbacks.on_evaluation) options_.callbacks.on_evaluation(found);
  result.evaluation = found;
  // Before the checkpoint, which says that this is the best: a training that is killed between the two makes it again.
  if (found.is_best) state_.save_model(found.epoch, &found);
  state_.save(train.loader(), std::isfinite(metric) ? std::optional(metric) : std::nullopt);
}

}  // namespace lockstep
