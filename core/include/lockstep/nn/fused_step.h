// The step of an optimizer in one pass over memory, by LibTorch's fused kernels. Python's optimizers use these
// kernels with fused=True; LibTorch's optimizers in C++ do not.
//
//   loss.backward();
//   lockstep::fused_step(optimizer);       // in place of optimizer.step()
//
// optimizer.step() goes over memory once for each operation of its formula: SGD with momentum three times, Adam about
// ten times. A fused step of SGD with momentum and weight decay takes about half of the time, a fused step of Adam or
// AdamW a third, and with small models a tenth. SGD without momentum gains nothing. No further memory is needed.
//
// It is for torch::optim::SGD, Adam, AdamW and Adagrad themselves, with float or double parameters on the CPU or on
// CUDA devices (Adagrad: on the CPU alone). Rules are those of step(): parameter groups have options of their own, and
// parameters without a gradient are left out. The state is what step() keeps in optimizer.state(), so that schedulers,
// checkpoints and later calls of step() go on with it. Results are those of fused=True in Python, bit for bit, with
// any number of threads. They differ from those of step() in the last bits: the kernels round at other places.
//
// optimizer.step() takes the whole step if there is no kernel for a part of it:
//  - the optimizer is of another class, derived classes and ZeroRedundancyOptimizer included (its option `fused` lets
//    the optimizer inside take fused steps);
//  - a gradient is sparse, or a gradient or a loaded state differs from its parameter in dtype, device or the order of
//    its elements in memory;
//  - a parameter has a dtype or a device other than those above, has holes in its memory, or is in the list twice.
// 16-bit parameters belong to the last kind: LibTorch 2.11 takes wrong steps of SGD for them on CPUs. MasterWeights
// (lockstep/nn/mixed_precision.h) are float.
#pragma once

#include <torch/optim/optimizer.h>

namespace lockstep {

// Takes one step, without a closure. Returns false if optimizer.step() took it, not the kernels. The choice
// depends on classes, dtypes, devices and the order of memory alone, so ranks with the same model and optimizer take a
// step in the same way. Nothing is sent. Not thread-safe. Throws what optimizer.step() throws.
bool fused_step(torch::optim::Optimizer& optimizer);

}  // namespace lockstep
