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
// and back, in a program that has made the same model and optimizer:
//
//   if (auto state = manager.load_latest()) {
//     state->restore_model(*net);
//     state->restore_optimizer(optimizer);
//     state->restore_scheduler(scheduler);
//     state->restore_generator();
//     epoch = state->get_int("epoch") + 1;
//   }
//
// Training then goes on with the same bits as if it had never stopped. Methods throw CheckpointError; a restore that
// throws has changed nothing. Not thread-safe.
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

  // Parameters and buffers by name, without a common "module." in front, which wrappers add. Not copied: they are saved
  // with the values that they have when save() is called.
  void add_model(const torch::nn::Module& model);
  // Into a model with the same names and shapes, with or without "module."; values are converted to the model's dtypes
  // and devices. kMismatch lists missing and unexpected names and different shapes.
  void restore_model(torch::nn::Module& model) const;

  // SGD, Adam, AdamW, RMSprop or Adagrad: options of each parameter group (learning rate too) and the state of each
  // parameter, in the order of the groups. Not copied, as above.
  void add_optimizer(const torch::optim::Optimizer& optimizer);
  // Into an optimizer of the same kind with as many parameters of the same shapes.
  void restore_optimizer(torch::optim::Optimizer& optimizer) const;

  // StepLR, any other scheduler derived from LRScheduler whose rates follow from its step count and the optimizer's
  // present rates, or ReduceLROnPlateauScheduler; its state now. Arguments of the constructor are not saved, and the
  // rates are the optimizer's: restore that as well.
  void add_scheduler(const torch::optim::LRScheduler& scheduler);
  void add_scheduler(const torch::optim::ReduceLROnPlateauScheduler& scheduler);
  // Into a scheduler of the same type.
  void restore_scheduler(torch::optim::LRScheduler& scheduler) const;
  void restore_scheduler(torch::optim::ReduceLROnPlateauScheduler& scheduler) const;

  // LibTorch's global CPU generator, which dropout and initialisation draw from; its state now.
  void add_generator();
  void restore_generator() const;

  // Values of your own.
  void set(std::string_view name, std::int64_t value);
  void set(std::string_view name, int value) { set(name, std::int64_t{value}); }
  void set(std::string_view name, double value);  // exact
  void set(std::string_view name, std::string_view value);
  void set(std::string_view name, const char* value) { set(name, std::string_view(value)); }
  bool has(std::string_view name) const;
  // kNotFound when there is no such value, kCorrupt when it is no number.
  std::int64_t get_int(std::string_view name) const;
  double get_double(std::string_view name) const;
  std::string get_text(std::string_view name) const;

  // As given to CheckpointManager::save.
  std::int64_t step() const;
  std::optional<double> metric() const;

  // With tensors of its own, so that training may go on while it is written.
  Checkpoint clone() const;

  // One file, without a manager.
  void save(const std::filesystem::path& path) const { write_tensor_file(path, file_); }
  static Checkpoint load(const std::filesystem::path& path);

 private:
  friend class CheckpointManager;

  // Runs it, with this checkpoint's name in front of its errors.
  template <typename Restore>
  void restore(Restore&& run) const;

  TensorFile file_;
  std::string origin_ = "this checkpoint";  // for messages: the file it came from
};

}  // namespace lockstep::checkpoint
