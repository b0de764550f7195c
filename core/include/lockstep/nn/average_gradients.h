// Data-parallel training by hand, for teaching and tests: the loop that DistributedDataParallel replaces.
//
//   loss.backward();
//   lockstep::average_gradients(net);   // gradients are now the mean over all ranks
//   optimizer.step();
//
// Gives the same gradients, bit for bit, as DistributedDataParallel. It is slower: nothing overlaps with the backward
// pass, and every gradient is copied twice. It does not make parameters equal first: broadcast the parameters, or give
// every rank the same seed.
//
// Collective over the group; blocks. All ranks pass the same parameters in the same order. If some ranks have no
// gradient for a parameter, their gradient counts as zero. If no rank has a gradient, the gradient stays undefined. A
// gradient that is sparse on any rank (Embedding with `sparse`) is sparse on all of them afterwards. c10::ValueError
// for a parameter that is no leaf. Not thread-safe. Throws what the collectives throw (lockstep/c10d/errors.h).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

void average_gradients(const std::vector<torch::Tensor>& parameters, const ProcessGroup& group = nullptr);
void average_gradients(const torch::nn::Module& module, const ProcessGroup& group = nullptr);

template <typename Contained>
void average_gradients(const torch::nn::ModuleHolder<Contained>& module, const ProcessGroup& group = nullptr) {
  average_gradients(static_cast<const torch::nn::Module&>(*module.ptr()), group);
}

}  // namespace lockstep
