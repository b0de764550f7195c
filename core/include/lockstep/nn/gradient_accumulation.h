// A step from several micro-batches, and means over ranks with different numbers of samples.
//
//   optimizer.zero_grad();
//   lockstep::accumulate_gradients(ddp, 4, [&](int part) {
//     return loss_of(ddp->forward(inputs[part]), targets[part]);
//   });
//   optimizer.step();
//
// and, with a loss that is a sum over samples:
//
//   const double factor = lockstep::sample_mean_factor(labels.size(0));
//   (torch::nll_loss(ddp->forward(images), labels, {}, at::Reduction::Sum) * factor).backward();
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

struct AccumulateOptions {
  // On: each loss is divided by the number of parts, so that the step equals the step of one large batch of equal
  // parts. Off: losses add up.
  bool mean = true;
};

// Runs forward and backward for each of `parts` micro-batches. Only the last pass sends gradients: the sum of all
// passes. `loss_of_part(part)` returns the loss of micro-batch 0, 1, ... Returns the step's loss on this rank, without
// graph. Gradients that are there already are part of the sum. Every rank passes the same `parts`.
template <typename Ddp, typename LossOfPart>
torch::Tensor accumulate_gradients(Ddp& ddp, int parts, LossOfPart&& loss_of_part,
                                   const AccumulateOptions& options = {}) {
  TORCH_CHECK_VALUE(parts >= 1, "accumulate_gradients: expected at least one micro-batch, got ", parts);
  torch::Tensor total;
  for (int part = 0; part < parts; ++part) {
    const auto guard = ddp.no_sync(/*enable=*/part + 1 < parts);
    torch::Tensor loss = loss_of_part(part);
    if (options.mean) loss = loss / parts;
    loss.backward();
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total;
}

// Returns world size / (number of samples of all ranks). Multiply each rank's loss, a sum over its `samples` samples,
// by this factor: after the mean over ranks, the gradient is the gradient of the mean loss over all samples of all
// ranks. Ranks may have different numbers of samples, also 0 (a sum over 0 samples is zero; a mean would be NaN). With
// micro-batches, `samples` is the number in all of them, and AccumulateOptions::mean is off.
//
// Collective over the group: all-reduces one number, and blocks. Throws on every rank if no rank has a sample.
double sample_mean_factor(std::int64_t samples, const ProcessGroup& group = nullptr);

}  // namespace lockstep
