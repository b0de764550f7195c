// The state of a training run: model, optimizer, learning rate scheduler, random generator, and values of your own
// (epoch, sampler cursor, ...).
//
//   Checkpoint state;
//   state.add_model(*net);
//   state.add_optimizer(optimizer);
//   state.add_scheduler(scheduler);
//   state.add_generator();
//   state.set("epoch", epoch);
//   state.set("sampler", to_string(loader.state()));
//   manager.save(step, state, accuracy);
//
// and back, in a program that has made the same model and optimizer, on every rank:
//
//   if (auto state = manager.load_latest()) {
//     state->restore_model(*net);
//     state->restore_optimizer(optimizer);
//     state->restore_scheduler(scheduler);
//     state->restore_generator();
//     epoch = state->get_int("epoch") + 1;
//   }
//
// One process then continues with the same bits as without the stop, if its operations are deterministic on the CPU.
// Several ranks continue with the same model, optimizer and data, but a checkpoint holds only the generator of the rank
// that saved it: what the others draw from theirs (dropout) differs.
//
// Methods throw CheckpointError; a restore that throws has changed nothing. Not thread-safe.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

class Checkpoint {
 public:
  Checkpoint() = default;

  // Parameters and buffers by name, without the common prefix "module." that wrappers add. They are not copied: save()
  // writes the values that they have then.
  void add_model(const torch::nn::Module& model);
  // Restores a model with the same names and shapes, with or without "module."; values are converted to the model's
  // dtypes and devices. kMismatch lists missing and unexpected names, different shapes, and complex values for a real
  // tensor. kInvalidArgument lists tensors of the model that cannot be overwritten (expanded, sparse, meta, inference).
  void restore_model(torch::nn::Module& model) const;

  // SGD, Adam, AdamW, RMSprop or Adagrad: the options of each parameter group (with the learning rate) and the state of
  // each parameter, in the order of the groups. Tensors are not copied, like the model's. kInvalidArgument for options
  // that could not be restored.
  void add_optimizer(const torch::optim::Optimizer& optimizer);
  // Restores an optimizer of the same kind, with the same number of parameters and the same shapes. kCorrupt
  // for state that lacks a field which the options need, and for numbers that LibTorch's optimizers do not accept.
  void restore_optimizer(torch::optim::Optimizer& optimizer) const;

  // Copies the present state of a StepLR, of a ReduceLROnPlateauScheduler, or of any other LRScheduler whose rates
  // depend only on its step count and the optimizer's present rates. Constructor arguments are not saved. The rates are
  // part of the optimizer: restore that as well.
  void add_scheduler(const torch::optim::LRScheduler& scheduler);
  void add_scheduler(const torch::optim::ReduceLROnPlateauScheduler& scheduler);
  // Restores a scheduler of the same type.
  void restore_scheduler(torch::optim::LRScheduler& scheduler) const;
  void restore_scheduler(torch::optim::ReduceLROnPlateauScheduler& scheduler) const;

  // Copies the present state of this process's global CPU generator, from which dropout and initialization draw.
  // Generators of GPUs are not saved.
  void add_generator();
  // Gives this process the saved state. All ranks that restore the same checkpoint get the same state.
  void restore_generator() const;

  // Your own values.
  void set(std::string_view name, std::int64_t value);
  void set(std::string_view name, int value) { set(name, std::int64_t{value}); }
  void set(std::string_view name, double value);  // exact
  void set(std::string_view name, std::string_view value);
  void set(std::string_view name, const char* value) { set(name, std::string_view(value)); }
  bool has(std::string_view name) const;
  // kNotFound when there is no such value, kCorrupt when it is not a number.
  std::int64_t get_int(std::string_view name) const;
  double get_double(std::string_view name) const;
  std::string get_text(std::string_view name) const;

  // The values that were given to CheckpointManager::save.
  std::int64_t step() const;
  std::optional<double> metric() const;

  // A copy with its own tensors: training may go on while it is written.
  Checkpoint clone() const;

  // To and from a single file, without a manager.
  void save(const std::filesystem::path& path) const { write_tensor_file(path, file_); }
  static Checkpoint load(const std::filesystem::path& path);

 private:
  friend class CheckpointManager;

  TensorFile file_;
  std::string origin_ = "this checkpoint";  // for messages: the path of its file
};

}  // namespace lockstep::checkpoint
