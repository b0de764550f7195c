#include "run_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/arithmetic.h"
#include "checkpoint/state/optimizer_state.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/checkpoint/state_dict.h"
#include "saved_parts.h"

namespace lockstep::trainer_detail {
namespace {

checkpoint::CheckpointManagerOptions manager_options(const TrainerOptions& options) {
  using Best = checkpoint::CheckpointManagerOptions::Best;
  return {.keep_last = options.keep_last,
          .best = options.monitor == Monitor::kAccuracy ? Best::kHighestMetric : Best::kLowestMetric,
          .asynchronous = options.asynchronous_checkpoints};
}

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

// With which a schedule began, or each of its parts.
std::vector<std::vector<double>> first_rates_of_parts(const c10::IValue& state) {
  const auto entries = state.toGenericDict();
  std::vector<std::vector<double>> all;
  if (entries.contains("_schedulers")) {
    for (const c10::IValue& part : entries.at("_schedulers").toListRef()) {
      const auto rates = first_rates_of_parts(part);
      all.insert(all.end(), rates.begin(), rates.end());
    }
    return all;
  }
  std::vector<double> rates;
  for (const c10::IValue& rate : entries.at("base_lrs").toListRef()) rates.push_back(rate.toDouble());
  all.push_back(std::move(rates));
  return all;
}

void warn_of_rates(const std::vector<double>& saved, const std::vector<double>& given) {
  if (get_rank() != 0 || saved == given) return;
  log::warning(fmt::format("the learning rate goes on as it was saved, {}: that of this program, {}, is not used",
                           fmt::join(saved, " and "), fmt::join(given, " and ")));
}

// Of each group, but for what schedules set: rates, and with a OneCycleLR momentum.
std::map<std::string, std::string> options_of(const torch::optim::Optimizer& optimizer,
                                              const optim::LRScheduler* schedule) {
  const bool sets_momentum = schedule != nullptr && schedule->has_own_rates();
  checkpoint::TensorFile file;
  checkpoint::add_optimizer(file, optimizer);
  std::map<std::string, std::string> options;
  for (const auto& [key, value] : file.metadata) {
    const std::string name = key.substr(key.rfind('.') + 1);
    const bool is_scheduled = name == "lr" || (sets_momentum && (name == "momentum" || name == "beta1"));
    if (key.starts_with("optimizer.group.") && !is_scheduled) options.emplace(key, value);
  }
  return options;
}

// As in PyTorch, the saved options of an optimizer take the place of the program's.
void warn_of_options(const std::map<std::string, std::string>& saved, const std::map<std::string, std::string>& given) {
  if (get_rank() != 0) return;
  std::vector<std::string> others;
  for (const auto& [key, value] : given) {
    const auto found = saved.find(key);
    if (found != saved.end() && found->second != value)
      others.push_back(fmt::format("{} is {}, not {}", key, found->second, value));
  }
  if (others.empty()) return;
  log::warning(fmt::format("the optimizer goes on with the options that were saved, not with those of this program: {}",
                           fmt::join(others, ", ")));
}

const char* name_of(Monitor monitor) {
  return monitor == Monitor::kLoss ? "the loss" : "the accuracy";
}

}  // namespace

Average of_all(const Average& mine) {
  Average all;
  for (const torch::Tensor& packed : all_gather_object(mine.packed())) all.merge(Average(packed));
  return all;
}

void on_rank_0(const std::function<void()>& work) {
  std::int64_t code = static_cast<std::int64_t>(ErrorCode::kOk);
  std::string text;
  if (get_rank() == 0) {
    try {
      work();
    } catch (const checkpoint::CheckpointError& error) {
      code = static_cast<std::int64_t>(error.code());
      text = error.what();
    }
  }
  std::vector<std::string> failure{std::to_string(code), text};
  broadcast_object(failure, 0);
  if (failure[0] == std::to_string(static_cast<std::int64_t>(ErrorCode::kOk))) return;
  throw checkpoint::CheckpointError(static_cast<ErrorCode>(std::stoll(failure[0])),
                                    get_rank() == 0 ? failure[1] : "rank 0: " + failure[1]);
}

RunState::RunState(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer,
                   const TrainerOptions& options, torch::Device device, OptimizerStep& step)
    : model_(std::move(model)), optimizer_(optimizer), options_(options), device_(device), step_(step) {
  if (options.checkpoint_dir.empty()) return;
  // A newcomer writes nothing before it is needed.
  if (!options.newcomer)
    on_rank_0([&] {
      // Throws now for an optimizer that cannot be saved, instead of after the first epoch.
      checkpoint::Checkpoint().add_optimizer(optimizer_);
      manager_ = std::make_unique<checkpoint::CheckpointManager>(options.checkpoint_dir, manager_options(options));
      manager_->take_folder();
    });
  if (!manager_) {
    manager_ = std::make_unique<checkpoint::CheckpointManager>(options.checkpoint_dir, manager_options(options));
  }
}

void RunState::rebuild() {
  if (!manager_ || get_rank() == 0) return;
  // Lets go of the folder, which this rank may have written as rank 0 of an earlier world.
  manager_ = std::make_unique<checkpoint::CheckpointManager>(options_.checkpoint_dir, manager_options(options_));
}

void RunState::save(const data::DataLoaderBase& loader, std::optional<double> metric) {
  if (!manager_) return;
  write(loader, metric);
  if (options_.callbacks.on_checkpoint) {
    options_.callbacks.on_checkpoint({progress.epoch, progress.step, manager_->path_of(progress.step)});
  }
}

void RunState::write(const data::DataLoaderBase& loader, std::optional<double> metric) {
  const auto generators = gather_object(checkpoint::generator_state(), 0);
  const bool on_gpu = device_.is_cuda();
  const auto gpu_generators =
      on_gpu ? gather_object(checkpoint::generator_state(device_), 0) : std::vector<at::Tensor>();
  take_folder();
  const Average losses = options_.elastic ? progress.losses : of_all(progress.losses);
  on_rank_0([&] {
    checkpoint::Checkpoint state;
    state.add_model(*model_);
    state.add_optimizer(optimizer_);
    if (options_.scheduler) state.add_scheduler(*options_.scheduler);
    state.add_generators(generators);
    if (on_gpu) state.add_generators(gpu_generators, device_.type());
    if (auto& averages = step_.averages(); averages && averages->updates() > 0) {
      state.add_tensors(kAverages, averages->tensors());
      state.set("ema.updates", averages->updates());
    }
    if (auto& scaler = step_.scaler()) {
      for (const auto& [name, value] : scaler->state_dict()) state.set("scaler." + name, value);
    }
    state.set("sampler", to_string(loader.state()));
    state.set("losses.sum", losses.sum());
    state.set("losses.count", losses.count());
    add_progress(state);
    manager_->save(progress.step, state, metric);
  });
}

// Before the first save. If a rank dies in it, the others make the save again, and `progress` is that from before it.
// Rank 0 saves when all know that the folder is this training's, so the checkpoint never counts as an earlier one.
void RunState::take_folder() {
  if (!progress.earlier_in_folder) return;
  const std::vector<int> own = all_gather_object(folder_is_own_ ? 1 : 0);
  if (std::find(own.begin(), own.end(), 0) != own.end()) {
    on_rank_0([&] { set_earlier_aside(); });
    folder_is_own_ = true;
    barrier();
  }
  progress.earlier_in_folder = false;
}

void RunState::add_progress(checkpoint::Checkpoint& state) {
  state.set("epoch", progress.epoch);
  state.set("monitor", static_cast<int>(options_.monitor));
  if (progress.best) state.set("best", *progress.best);
  if (progress.to_beat) state.set("to_beat", *progress.to_beat);
  state.set("not_better", progress.not_better);
  state.set("evaluation_due", progress.evaluation_due ? 1 : 0);
  state.set("evaluated", progress.evaluated);
  if (!options_.classes.empty()) state.set(kClassesValue, text_of_classes(options_.classes));
  state.set(kTrainedValue, text_of_trained(*model_, optimizer_));
}

bool RunState::resume(data::DataLoaderBase& loader) {
  const auto state = manager_->load_latest([](const auto& steps) { return all_gather_object(steps); });
  if (!state) {
    if (get_rank() == 0) {
      log::warning(
          fmt::format("no checkpoint in {}: the training starts from the beginning", options_.checkpoint_dir.native()));
    }
    return false;
  }
  try {
    restore(*state, loader);
  } catch (const checkpoint::CheckpointError& error) {
    if (error.code() != ErrorCode::kMismatch) throw;
    throw checkpoint::CheckpointError(
        error.code(), fmt::format("cannot resume: {}; resume with the model, optimizer, scheduler and classes that "
                                  "were saved, or give this training another folder than {}",
                                  error.what(), options_.checkpoint_dir.native()));
  } catch (const data::DataError& error) {
    throw data::DataError(error.code(),
                          fmt::format("cannot resume from {}: {}", options_.checkpoint_dir.native(), error.what()));
  }
  if (state->has("monitor") && state->get_int("monitor") != static_cast<int>(options_.monitor)) judge_again(loader);
  return true;
}

void RunState::check_classes(const checkpoint::Checkpoint& state) const {
  if (options_.classes.empty() || !state.has(kClassesValue)) return;
  const std::string other = first_other_name({"in the checkpoint", state.get_text(kClassesValue)},
                                             {"in this training", text_of_classes(options_.classes)});
  if (!other.empty()) throw checkpoint::CheckpointError(ErrorCode::kMismatch, other);
}

// The optimizer would take the states of other parameters of the same shapes.
void RunState::check_trained(const checkpoint::Checkpoint& state) const {
  if (!state.has(kTrainedValue)) return;
  const std::string other =
      first_other_name({"in the checkpoint", state.get_text(kTrainedValue)},
                       {"in this training", text_of_trained(*model_, optimizer_)}, "optimizer parameter");
  if (other.empty()) return;
  throw checkpoint::CheckpointError(
      ErrorCode::kMismatch, other + "; train the same parameters (of lockstep train: with the same model.freeze)");
}

void RunState::restore(const checkpoint::Checkpoint& state, data::DataLoaderBase& loader) {
  check_classes(state);
  const std::vector<double> first_rates = rates_of(optimizer_);
  const auto given_options = options_of(optimizer_, options_.scheduler.get());
  const std::int64_t steps = steps_of(limited(loader.size(), options_));  // of a whole epoch
  state.restore_model(*model_);
  check_trained(state);  // a model with other names is a better reason
  state.restore_optimizer(optimizer_);
  warn_of_options(options_of(optimizer_, options_.scheduler.get()), given_options);
  state.restore_generator();
  if (device_.is_cuda()) state.restore_generator(device_);
  if (auto& averages = step_.averages()) {
    if (state.has("ema.updates")) {
      averages->load(state.get_tensors(kAverages), state.get_int("ema.updates"));
    } else if (get_rank() == 0) {
      log::warning("the checkpoint has no averages of parameters: they begin with the present ones");
    }
  }
  if (auto& scaler = step_.scaler(); scaler && state.has("scaler.scale")) {
    std::map<std::string, double> saved = scaler->state_dict();
    for (auto& [name, value] : saved) value = state.get_double("scaler." + name);
    scaler->load_state_dict(saved);
  }
  loader.load_state(data::sampler_state_from_string(state.get_text("sampler")));
  if (!options_.scheduler) {
    warn_of_rates(rates_of(optimizer_), first_rates);
  } else {
    const std::int64_t done = loader.size() - loader.batches_left();
    const std::int64_t left = steps_of(std::max<std::int64_t>(0, limited(loader.size(), options_) - done));
    const bool by_step = options_.scheduler_interval == TrainerOptions::Interval::kStep;
    const std::int64_t epoch = state.get_int("epoch");
    restore_schedule(state, first_rates, by_step ? (epoch + 1) * steps - std::min(steps, left) : epoch);
  }
  progress.epoch = state.get_int("epoch");
  progress.step = state.step();
  progress.best = state.has("best") ? std::optional(state.get_double("best")) : std::nullopt;
  progress.to_beat = state.has("to_beat") ? std::optional(state.get_double("to_beat")) : progress.best;
  progress.not_better = state.get_int("not_better");
  progress.evaluation_due = state.get_int("evaluation_due") != 0;
  progress.evaluated = state.has("evaluated") ? state.get_int("evaluated") : progress.epoch;
  // With fewer epochs than before this one is the last, which always has an evaluation.
  const bool at_begin_of_epoch = loader.batches_left() == loader.size();
  if (progress.epoch >= options_.epochs && at_begin_of_epoch && progress.evaluated < progress.epoch)
    progress.evaluation_due = true;
  progress.losses = Average();
  if (get_rank() == 0 || options_.elastic)
    progress.losses.add(state.get_double("losses.sum"), state.get_double("losses.count"));
}

// A schedule of another length goes where it would be if the training had begun with this length: all its steps are
// made again, because each computes its rate from the one before. `first_rates` are those that this program has given.
void RunState::restore_schedule(const checkpoint::Checkpoint& state, const std::vector<double>& first_rates,
                                std::int64_t position) {
  optim::LRScheduler& schedule = *options_.scheduler;
  const c10::IValue first = schedule.state_dict();
  const std::vector<std::int64_t> wanted = schedule.lengths();
  state.restore_scheduler(schedule);
  const std::vector<std::int64_t> saved = schedule.lengths();
  const auto given_rates = first_rates_of_parts(first);
  const auto saved_rates = first_rates_of_parts(schedule.state_dict());
  // Rates of its own are in no checkpoint. With the saved ones beside them a OneCycleLR would be two halves of cycles.
  const bool keeps_rates = !schedule.has_own_rates() || saved_rates == given_rates;
  if ((saved == wanted && keeps_rates) || state.get_int("epoch") >= options_.epochs) {
    return warn_of_rates(saved_rates.front(), given_rates.front());
  }
  schedule.load_state_dict(first);
  auto& groups = optimizer_.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) groups[group].options().set_lr(first_rates[group]);
  for (std::int64_t step = 0; step < position; ++step) schedule.step();
  if (get_rank() != 0) return;
  if (saved == wanted) return log::info("the schedule has the rates of this training now, not those of the checkpoint");
  log::info(fmt::format("the schedule has the length of this training now, {}, not that of the checkpoint, {}",
                        fmt::join(wanted, " and "), fmt::join(saved, " and ")));
}

std::int64_t RunState::steps_of(std::int64_t batches) const {
  return ceil_divide(batches, options_.accumulation);
}

// The manager compares the metrics of all files in the folder, and those of others mean something else. So they leave
// the folder, and the newest one loses its metric. At the end of an epoch it is judged again, as there may be no other.
void RunState::judge_again(const data::DataLoaderBase& loader) {
  progress.best.reset();
  progress.to_beat.reset();
  progress.not_better = 0;
  if (progress.epoch > 0 && loader.batches_left() == loader.size()) progress.evaluation_due = true;
  on_rank_0([&] {
    std::vector<std::int64_t> others = manager_->steps();
    std::erase(others, progress.step);
    const std::string moved =
        others.empty() ? ""
                       : fmt::format("; the other checkpoints are now in {}", manager_->set_aside(others).native());
    log::warning(
        fmt::format("evaluations are judged by {} now, not as before: the search for the best one begins again{}",
                    name_of(options_.monitor), moved));
  });
  write(loader, std::nullopt);
}

void RunState::set_earlier_aside() {
  const std::vector<std::int64_t> steps = manager_->steps();
  if (steps.empty()) return;
  const std::string aside = manager_->set_aside(steps).native();
  log::warning(
      fmt::format("the training starts from the beginning: checkpoints of an earlier one are now in {}", aside));
}

bool RunState::load_best() {
  TORCH_CHECK_VALUE(manager_, "Trainer: load_best needs TrainerOptions::checkpoint_dir");
  wait();
  if (progress.earlier_in_folder) return false;  // nothing in the folder is of this training
  const auto state = manager_->load_best();
  if (!state) return false;
  state->restore_model(*model_);
  if (!state->has("ema.updates")) return true;
  const auto saved = state->get_tensors(kAverages);
  checkpoint::load_state_dict(*model_, averaged_state(*model_, saved));
  // Evaluations compute with the averages, not with the module's values.
  if (auto& present = step_.averages()) present->load(saved, state->get_int("ema.updates"));
  return true;
}

void RunState::save_model(std::int64_t epoch, const Evaluation* found) {
  if (options_.model_file.empty()) return;
  on_rank_0([&] {
    checkpoint::TensorFile file;
    file.metadata = options_.model_metadata;
    for (const auto& entry : checkpoint::state_dict(*model_)) file.tensors[entry.key()] = entry.value();
    if (auto& averages = step_.averages(); averages && averages->updates() > 0) {
      for (const auto& entry : averaged_state(*model_, averages->tensors())) file.tensors[entry.key()] = entry.value();
    }
    file.metadata["lockstep.epochs"] = std::to_string(epoch + 1);
    file.metadata["lockstep.step"] = std::to_string(progress.step);
    if (found != nullptr) {
      file.metadata["lockstep.loss"] = fmt::format("{}", found->loss);
      if (!found->accuracies.empty()) file.metadata["lockstep.accuracy"] = fmt::format("{}", found->accuracies.front());
    }
    checkpoint::write_tensor_file(options_.model_file, file);
  });
}

void RunState::wait() {
  if (manager_) on_rank_0([&] { manager_->wait(); });
}

}  // namespace lockstep::trainer_detail
