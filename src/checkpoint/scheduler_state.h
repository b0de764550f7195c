// Converts LibTorch's learning rate schedulers to named values, and back:
//
//   scheduler.type    "torch::optim::StepLR"
//   scheduler.steps   how often step() was called (an LRScheduler)
//   scheduler.best, .bad_epochs, .cooldown, .epoch   (ReduceLROnPlateauScheduler)
//
// The learning rates themselves are saved with the optimizer.
#pragma once

#include <torch/torch.h>

#include "lockstep/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

void add_scheduler(TensorFile& file, const torch::optim::LRScheduler& scheduler);
void add_scheduler(TensorFile& file, const torch::optim::ReduceLROnPlateauScheduler& scheduler);

// Throw CheckpointError (kMismatch, kCorrupt) before anything is changed.
void restore_scheduler(const TensorFile& file, torch::optim::LRScheduler& scheduler);
void restore_scheduler(const TensorFile& file, torch::optim::ReduceLROnPlateauScheduler& scheduler);

}  // namespace lockstep::checkpoint
