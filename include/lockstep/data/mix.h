// Mixing the samples of a batch with one another: mixup and cutmix, as torchvision's transforms.v2.MixUp and CutMix.
// They work on whole batches, so they come after the loader:
//
//   for (auto& batch : loader) {
//     CounterRandom random({seed, epoch, step}, 0);
//     batch = mixup(batch, {.num_classes = 1000, .alpha = 0.2}, random);   // target: float [n, 1000]
//
// Each sample is mixed with its neighbour in the batch. Losses that take probabilities (cross_entropy does) fit.
#pragma once

#include "lockstep/data/dataset.h"
#include "lockstep/data/transforms/counter_random.h"

namespace lockstep::data {

struct MixOptions {
  std::int64_t num_classes = 0;
  // Of the Beta(alpha, alpha) distribution that the share is drawn from; 1: all shares alike.
  double alpha = 1.0;
};

// x * share + neighbour * (1 - share), for data (float [n, ...]) and one-hot targets (from int64 [n]). Throws DataError
// (kInvalidArgument) for other types, alpha or num_classes below what is possible, labels outside of the classes.
Example mixup(const Example& batch, const MixOptions& options, CounterRandom& random);

// A rectangle of each picture (data [n, c, h, w]) is its neighbour's; targets are mixed by area.
Example cutmix(const Example& batch, const MixOptions& options, CounterRandom& random);

}  // namespace lockstep::data
