// Converts LibTorch's learning rate schedulers to named values, and back:
//
//   scheduler.type    "torch::optim::StepLR"
//   scheduler.steps   how often step() was called (an LRScheduler)
//   scheduler.best, .bad_epochs, .cooldown, .epoch   (ReduceLROnPlateauScheduler)
//   scheduler.state   the state dict, as in value_text.h (any other class)
//
// The learning rates themselves are saved with the optimizer.
#pragma once

#include <torch/torch.h>

#include <typeinfo>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

void add_scheduler(TensorFile& file, const torch::optim::LRScheduler& scheduler);
void add_scheduler(TensorFile& file, const torch::optim::ReduceLROnPlateauScheduler& scheduler);
void add_scheduler(TensorFile& file, const std::type_info& type, const c10::IValue& state);

// Throw CheckpointError (kMismatch, kCorrupt) before anything is changed.
void restore_scheduler(const TensorFile& file, torch::optim::LRScheduler& scheduler);
void restore_scheduler(const TensorFile& file, torch::optim::ReduceLROnPlateauScheduler& scheduler);
c10::IValue scheduler_state(const TensorFile& file, const std::type_info& type);
// What Python's scheduler.load_state_dict() takes for the scheduler in `file`, whatever its type.
c10::IValue python_scheduler(const TensorFile& file);

}  // namespace lockstep::checkpoint
