#include "run_state.h"

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::trainer_detail {
namespace {

constexpr const char* kAverages = "ema";

checkpoint::CheckpointManagerOptions manager_options(const TrainerOptions& options) {
  using Best = checkpoint::CheckpointManagerOptions::Best;
  return {.keep_last = options.keep_last,
          .best = options.monitor == Monitor::kAccuracy ? Best::kHighestMetric : Best::kLowestMetric,
          .asynchronous = options.asynchronous_checkpoints};
}

// The sums of all ranks.
Average of_all(const Average& mine) {
  Average all;
  for (const torch::Tensor& packed : all_gather_object(mine.packed())) all.merge(Average(packed));
  return all;
}

}  // namespace

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
  on_rank_0([&] {
    // What cannot be saved is an error now, not after the first epoch.
    checkpoint::Checkpoint().add_optimizer(optimizer_);
    manager_ = std::make_unique<checkpoint::CheckpointManager>(options.checkpoint_dir, manager_options(options));
  });
  if (!manager_) {
    manager_ = std::make_unique<checkpoint::CheckpointManager>(options.checkpoint_dir, manager_options(options));
  }
}

void RunState::save(const data::DataLoaderBase& loader, std::optional<double> metric) {
  if (!manager_) return;
  const auto generators = gather_object(checkpoint::generator_state(), 0);
  const bool on_gpu = device_.is_cuda();
  const auto gpu_generators =
      on_gpu ? gather_object(checkpoint::generator_state(device_), 0) : std::vector<at::Tensor>();
  const Average losses = of_all(progress.losses);
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
  if (options_.callbacks.on_checkpoint) {
    options_.callbacks.on_checkpoint({progress.epoch, progress.step, manager_->path_of(progress.step)});
  }
}

void RunState::add_progress(checkpoint::Checkpoint& state) {
  state.set("epoch", progress.epoch);
  if (progress.best) state.set("best", *progress.best);
  state.set("not_better", progress.not_better);
  state.set("evaluation_due", progress.evaluation_due ? 1 : 0);
}

bool RunState::resume(data::DataLoaderBase& loader) {
  const auto state = manager_->load_latest([](const auto& steps) { return all_gather_object(steps); });
  if (!state) {
    if (get_rank() == 0) {
      log::info(fmt::format("no checkpoint in {}: the training begins anew", options_.checkpoint_dir.native()));
    }
    return false;
  }
  try {
    restore(*state, loader);
  } catch (const checkpoint::CheckpointError& error) {
    if (error.code() != ErrorCode::kMismatch) throw;
    throw checkpoint::CheckpointError(
        error.code(), fmt::format("cannot resume: {}; resume with the model, optimizer and scheduler that were saved, "
                                  "or give this training another checkpoint_dir than {}",
                                  error.what(), options_.checkpoint_dir.native()));
  }
  return true;
}

void RunState::restore(const checkpoint::Checkpoint& state, data::DataLoaderBase& loader) {
  state.restore_model(*model_);
  state.restore_optimizer(optimizer_);
  if (options_.scheduler) state.restore_scheduler(*options_.scheduler);
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
  progress.epoch = state.get_int("epoch");
  progress.step = state.step();
  progress.best = state.has("best") ? std::optional(state.get_double("best")) : std::nullopt;
  progress.not_better = state.get_int("not_better");
  progress.evaluation_due = state.get_int("evaluation_due") != 0;
  progress.losses = Average();
  if (get_rank() == 0) progress.losses.add(state.get_double("losses.sum"), state.get_double("losses.count"));
}

bool RunState::load_best() {
  TORCH_CHECK_VALUE(manager_, "Trainer: load_best needs TrainerOptions::checkpoint_dir");
  wait();
  const auto state = manager_->load_best();
  if (!state) return false;
  state->restore_model(*model_);
  if (state->has("ema.updates")) {
    checkpoint::StateDict averages;
    for (const auto& [name, tensor] : state->get_tensors(kAverages)) averages.insert(name, tensor);
    checkpoint::load_state_dict(*model_, averages);
  }
  return true;
}

void RunState::wait() {
  if (manager_) on_rank_0([&] { manager_->wait(); });
}

}  // namespace lockstep::trainer_detail
