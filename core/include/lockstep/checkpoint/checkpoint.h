// The state of a training run: model, optimizer, learning rate scheduler, random generator, and values of your own
// (epoch, sampler cursor, ...).
//
//   Checkpoint state;
//   state.add_model(*net);
//   state.add_optimizer(optimizer);
//   state.add_scheduler(scheduler);
//   state.add_generators(generators);   // of all ranks: see generator_state()
//   state.set("epoch", epoch);
//   state.set("sampler", to_string(loader.state()));
//   manager.save(step, state, accuracy);
//
// To go on, make the same model and optimizer, and restore them on every rank:
//
//   if (auto state = manager.load_latest()) {
//     state->restore_model(*net);
//     state->restore_optimizer(optimizer);
//     state->restore_scheduler(scheduler);
//     state->restore_generator();
//     epoch = state->get_int("epoch") + 1;
//   }
//
// With the same number of ranks, and with operations that are deterministic on the CPU, the training goes on as if it
// had never stopped, bit for bit. Another number of ranks goes on with the same model and optimizer, and with the rest
// of the epoch's data.
//
// A checkpoint holds one model, one optimizer and one scheduler. Adding a second model is kInvalidArgument; adding the
// same model again replaces its saved state by its present state. The same holds for optimizers and schedulers.
// Methods throw CheckpointError. A restore that throws has changed nothing, and a method that adds and throws has added
// nothing. Not thread-safe.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/types.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "lockstep/checkpoint/errors.h"
#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

// Returns a copy of the present state of this process's global random generator for `device`. Dropout and
// initialization draw from the generator of the CPU, or of the GPU on which they run. With several ranks, bring the
// states of all ranks to the rank that saves. Every rank calls
//
//   const auto generators = gather_object(checkpoint::generator_state(), 0);   // lockstep/c10d/objects.h
//
// kUnsupported if this process has no such device.
at::Tensor generator_state(torch::Device device = torch::kCPU);

// A scheduler with the two methods that schedulers have in Python: state_dict() returns a dict of numbers, text, lists
// and dicts, and load_state_dict() takes such a dict.
template <typename T>
concept HasStateDict = requires(T& object, const T& constant, const c10::IValue& state) {
  { constant.state_dict() } -> std::convertible_to<c10::IValue>;
  object.load_state_dict(state);
};

class Checkpoint {
 public:
  Checkpoint() = default;

  // Adds the model's parameters and buffers, by name. A prefix "module." that all names have is left out, because
  // wrappers add it. The tensors are not copied: save() writes the values that they have when save() is called.
  void add_model(const torch::nn::Module& model);
  // Restores a model with the same names and shapes. The names may have the prefix "module." or not. Values are
  // converted to the model's dtypes and devices. kMismatch lists missing names, unexpected names, different shapes, and
  // real tensors for which the checkpoint has complex values. kInvalidArgument lists tensors of the model that cannot
  // be overwritten (expanded, sparse, meta, inference).
  void restore_model(torch::nn::Module& model) const;

  // Adds an SGD, Adam, AdamW, RMSprop or Adagrad: the options of each parameter group, with the learning rate, and the
  // state of each parameter, in the order of the groups. The tensors of the state are not copied, like the model's
  // tensors. kInvalidArgument for options that could not be restored later.
  void add_optimizer(const torch::optim::Optimizer& optimizer);
  // Restores an optimizer of the same kind, with the same number of parameters and the same shapes. kCorrupt if the
  // saved state lacks a field that the saved options need, or has a number that LibTorch's optimizers refuse.
  void restore_optimizer(torch::optim::Optimizer& optimizer) const;

  // Copies the present state of a StepLR, a ReduceLROnPlateauScheduler, or any other LRScheduler that computes its
  // rates from its step count and the optimizer's present rates alone. The arguments of the scheduler's constructor are
  // not saved. The learning rates belong to the optimizer: restore the optimizer as well.
  void add_scheduler(const torch::optim::LRScheduler& scheduler);
  void add_scheduler(const torch::optim::ReduceLROnPlateauScheduler& scheduler);
  // Restores a scheduler of the same type.
  void restore_scheduler(torch::optim::LRScheduler& scheduler) const;
  void restore_scheduler(torch::optim::ReduceLROnPlateauScheduler& scheduler) const;
  // The same for any other class that has a state dict. Its load_state_dict() restores it, and throws its own errors.
  template <HasStateDict T>
  void add_scheduler(const T& scheduler) {
    add_scheduler_state(&scheduler, typeid(scheduler), scheduler.state_dict());
  }
  template <HasStateDict T>
  void restore_scheduler(T& scheduler) const {
    scheduler.load_state_dict(scheduler_state(typeid(scheduler)));
  }

  // Adds the generator states of all ranks: states[r] is what generator_state() returned on rank r. `type` is the type
  // of the device that was asked for there. A checkpoint may hold states of the CPU and of GPUs: call once for each
  // type. kInvalidArgument if `states` is empty, or has a tensor that is no generator state.
  void add_generators(std::span<const at::Tensor> states, torch::DeviceType type = torch::kCPU);
  // Adds the present state of the CPU's generator. For runs of one process only: with several ranks the other ranks'
  // states would be missing, so use add_generators.
  void add_generator() { add_generators(std::vector{generator_state()}); }
  // Restores the generator of `device` to the state that this process's rank had. The rank is the one in the process
  // group that this process has joined; before it joins one, the rank in the launcher's variables; without a launcher,
  // rank 0. The checkpoint may be of fewer ranks. A rank that it does not have then gets a new state, computed from
  // rank 0's state and the rank's number: each rank gets another one, and the same one whenever this checkpoint is
  // restored. So no two ranks draw the same numbers, whatever number of ranks resumes. The first such rank logs a
  // warning. kNotFound if the checkpoint has no state for this type of device.
  void restore_generator(torch::Device device = torch::kCPU) const;

  // Adds tensors of your own under one name, such as the averages of an ExponentialMovingAverage:
  // add_tensors("ema", ema.tensors()). They are not copied, like the model's tensors, and replace all tensors that were
  // added under the same name before. kInvalidArgument for "e.x" beside "e": the tensor "x.y" of "e" and the tensor "y"
  // of "e.x" would have the same name in the file.
  void add_tensors(std::string_view name, const std::map<std::string, at::Tensor>& tensors);
  // kNotFound if the checkpoint has no tensors of this name.
  std::map<std::string, at::Tensor> get_tensors(std::string_view name) const;

  // Values of your own. A name that is set again gets the new value.
  void set(std::string_view name, std::int64_t value);
  void set(std::string_view name, int value) { set(name, std::int64_t{value}); }
  void set(std::string_view name, double value);  // get_double() returns the same bits
  void set(std::string_view name, std::string_view value);
  void set(std::string_view name, const char* value) { set(name, std::string_view(value)); }
  bool has(std::string_view name) const;
  // Return a value of set() or set_value(). kNotFound when there is no such value, kCorrupt when it is not a number.
  // get_text() returns numbers too, as text, and refuses other kinds.
  std::int64_t get_int(std::string_view name) const;
  double get_double(std::string_view name) const;
  std::string get_text(std::string_view name) const;
  // Structured values, such as the dict of a training loop: numbers, text, None, lists, tuples and dicts. kUnsupported
  // for every other type, tensors too. get_value() also returns a value that was saved by set(), with its type.
  void set_value(std::string_view name, const c10::IValue& value);
  c10::IValue get_value(std::string_view name) const;

  // The step and the metric that were given to CheckpointManager::save. Step 0 if this checkpoint was saved without it.
  std::int64_t step() const;
  std::optional<double> metric() const;

  // Returns a copy that has its own tensors. The training may go on while the copy is written, also by another thread.
  // Blocks until the devices have finished copying.
  Checkpoint clone() const;

  // Write and read a single file, without a CheckpointManager.
  void save(const std::filesystem::path& path) const { write_tensor_file(path, file_); }
  static Checkpoint load(const std::filesystem::path& path);
  // content() returns what save() would write, and of() makes a checkpoint of such content: for programs that move
  // checkpoints without a file. The tensors are not copied. `origin` is what messages call the checkpoint.
  const TensorFile& content() const { return file_; }
  static Checkpoint of(TensorFile content, std::string origin);

 private:
  friend class CheckpointManager;

  // The objects that were added. Only their addresses are compared; nothing is read through them.
  struct Added {
    const void* model = nullptr;
    const void* optimizer = nullptr;
    const void* scheduler = nullptr;
  };

  const std::string& saved_text(std::string_view name) const;
  void require_no_other(const void* added, const void* now, const char* what) const;
  void add_scheduler_state(const void* scheduler, const std::type_info& type, const c10::IValue& state);
  c10::IValue scheduler_state(const std::type_info& type) const;

  TensorFile file_;
  Added added_;
  std::string origin_ = "this checkpoint";  // what messages call it: the path of its file, if it has one
};

}  // namespace lockstep::checkpoint
