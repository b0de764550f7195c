// Clipping gradients by their global norm, with errors that name the parameters.
//
//   loss.backward();                                   // gradients are the mean over all ranks
//   const double norm = lockstep::clip_grad_norm_(*net, 1.0);
//   optimizer.step();
//
// After a backward pass under DistributedDataParallel every rank has the same gradients, so all ranks clip alike, and
// nothing is sent. Clip after the pass that sends, not under no_sync. Leave parameters out that the wrapper ignores:
// ranks may clip these differently. A parameter of a SharedStep with average_gradients is an error: use its max_norm.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "lockstep/nn/reducer.h"

namespace lockstep {

struct ClipGradOptions {
  double norm_type = 2;  // p of the p-norm over all gradients; infinity: the largest absolute value
  // On: an infinite or NaN norm is an error that names the parameters; gradients keep their values. Off: with such a
  // norm all gradients become NaN or zero, as in PyTorch.
  bool error_if_nonfinite = false;
};

// Scales all gradients so that their norm is at most `max_norm`. Returns the norm before scaling. Parameters without a
// gradient are left out; sparse gradients count by their rows. The same numbers as torch.nn.utils.clip_grad_norm_. A
// parameter that is in the list twice is a c10::ValueError. Given a module, each of its parameters counts once.
double clip_grad_norm_(const std::vector<NamedParameter>& parameters, double max_norm,
                       const ClipGradOptions& options = {});
double clip_grad_norm_(const torch::nn::Module& module, double max_norm, const ClipGradOptions& options = {});

}  // namespace lockstep
