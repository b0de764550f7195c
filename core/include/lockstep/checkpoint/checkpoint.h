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
// As many ranks as before then continue with the same bits as without the stop, if their operations are deterministic
// on the CPU. Another number of ranks continues with the same model and optimizer, and the rest of the epoch's data.
//
// A checkpoint holds one model, optimizer and scheduler: adding another one is kInvalidArgument, adding the same again
// takes its present state. Methods throw CheckpointError; a restore that throws has changed nothing. Not thread-safe.
#pragma once

#include <torch/torch.h>

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

// A copy of the present state of a global generator of this process: that of the CPU, from which dropout and
// initialization draw, or that of a GPU. With several ranks, bring all states to the rank that saves. Every rank calls
//
//   const auto generators = gather_object(checkpoint::generator_state(), 0);   // lockstep/c10d/objects.h
//
// kUnsupported for a device that is not there.
at::Tensor generator_state(torch::Device device = torch::kCPU);

// A scheduler with Python's methods: state_dict() returns numbers, text, lists and dicts, and load_state_dict() takes
// them.
template <typename T>
concept HasStateDict = requires(T& object, const T& constant, const c10::IValue& state) {
  { constant.state_dict() } -> std::convertible_to<c10::IValue>;
  object.load_state_dict(state);
};

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
  // The same for other classes that have a state dict. They restore themselves, and throw their own errors.
  template <HasStateDict T>
  void add_scheduler(const T& scheduler) {
    add_scheduler_state(&scheduler, typeid(scheduler), scheduler.state_dict());
  }
  template <HasStateDict T>
  void restore_scheduler(T& scheduler) const {
    scheduler.load_state_dict(scheduler_state(typeid(scheduler)));
  }

  // The generator states of all ranks, by rank, from generator_state(). kInvalidArgument when there are none, or other
  // tensors among them.
  // `type`: of the devices that they are of. A checkpoint may hold those of the CPU and those of GPUs.
  void add_generators(std::span<const at::Tensor> states, torch::DeviceType type = torch::kCPU);
  // The same for a run of one process: adds its present state. With several ranks use add_generators: other ranks would
  // not find theirs.
  void add_generator() { add_generators(std::vector{generator_state()}); }
  // Gives this process the state of its rank: that in the process group that it has joined, before that the one of the
  // launcher's variables, alone rank 0. When the checkpoint has fewer ranks, a rank beyond them gets a new state, made
  // of rank 0's and the rank: different on every rank, and the same whenever this checkpoint is restored. The first
  // such rank logs a warning. So no two ranks draw the same numbers, whichever number of them resumes.
  // `device`: whose generator it is. kNotFound when the checkpoint has none of its type.
  void restore_generator(torch::Device device = torch::kCPU) const;

  // Your own tensors under one name, such as an ExponentialMovingAverage's: add_tensors("ema", ema.tensors()). Not
  // copied, like the model's. They replace those of the same name. kInvalidArgument for "e.x" beside "e", whose part
  // "x.y" would have the same name in the file as the part "y" of "e.x".
  void add_tensors(std::string_view name, const std::map<std::string, at::Tensor>& tensors);
  // kNotFound when the checkpoint has none of this name.
  std::map<std::string, at::Tensor> get_tensors(std::string_view name) const;

  // Your own values.
  void set(std::string_view name, std::int64_t value);
  void set(std::string_view name, int value) { set(name, std::int64_t{value}); }
  void set(std::string_view name, double value);  // exact
  void set(std::string_view name, std::string_view value);
  void set(std::string_view name, const char* value) { set(name, std::string_view(value)); }
  bool has(std::string_view name) const;
  // Of set() or set_value(). kNotFound when there is no such value, kCorrupt when it is not a number; get_text()
  // returns numbers too, and refuses other kinds.
  std::int64_t get_int(std::string_view name) const;
  double get_double(std::string_view name) const;
  std::string get_text(std::string_view name) const;
  // Values of several parts, such as a trainer's own dict: numbers, text, None, lists, tuples and dicts. kUnsupported
  // for others, tensors too. get_value() also returns what set() has saved, with the type that it had.
  void set_value(std::string_view name, const c10::IValue& value);
  c10::IValue get_value(std::string_view name) const;

  // The values that were given to CheckpointManager::save. Step 0 when there is none.
  std::int64_t step() const;
  std::optional<double> metric() const;

  // A copy with its own tensors: training may go on while it is written, also by another thread. Blocks until devices
  // have made it.
  Checkpoint clone() const;

  // To and from a single file, without a manager.
  void save(const std::filesystem::path& path) const { write_tensor_file(path, file_); }
  static Checkpoint load(const std::filesystem::path& path);

 private:
  friend class CheckpointManager;

  // What was added last, to be compared alone.
  struct Added {
    const void* model = nullptr;
    const void* optimizer = nullptr;
    const void* scheduler = nullptr;
  };

  const std::string& saved_text(std::string_view name) const;
  void require_first(const void*& added, const void* now, const char* what);
  void add_scheduler_state(const void* scheduler, const std::type_info& type, const c10::IValue& state);
  c10::IValue scheduler_state(const std::type_info& type) const;

  TensorFile file_;
  Added added_;
  std::string origin_ = "this checkpoint";  // for messages: the path of its file
};

}  // namespace lockstep::checkpoint
