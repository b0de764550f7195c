// Mixes the samples of a batch: mixup and cutmix, with the formulas of torchvision's transforms.v2.MixUp and CutMix
// (but with numbers from CounterRandom). They work on whole batches, so they come after the loader:
//
//   for (auto& batch : loader) {
//     CounterRandom random({seed, epoch, step}, 0);
//     batch = mixup(batch, {.num_classes = 1000, .alpha = 0.2}, random);   // target: float [n, 1000]
//
// Each sample is mixed with its neighbour in the batch. Use a loss that takes probabilities, such as cross_entropy.
#pragma once

#include "lockstep/data/dataset.h"
#include "lockstep/transforms/counter_random.h"

namespace lockstep::data {

struct MixOptions {
  std::int64_t num_classes = 0;  // may be left out for one-hot targets
  // The share of a sample is drawn from the Beta(alpha, alpha) distribution; with 1, all shares are equally likely.
  double alpha = 1.0;
};

// x * share + neighbour * (1 - share), for data (float [n, ...]) and one-hot targets (from int64 [n]). Targets [n,
// num_classes] of any type are taken as one-hot or as probabilities. Mixed targets keep a floating-point type; other
// types become float, as in torchvision, whatever the type of the data is. Throws DataError (kInvalidArgument) for
// other types, alpha of 0 or below, num_classes below 1, and labels outside of the classes.
Example mixup(const Example& batch, const MixOptions& options, CounterRandom& random);

// Replaces a rectangle of each picture (data [n, c, h, w]) by the same rectangle of its neighbour, and mixes the
// targets by area. Throws as mixup.
Example cutmix(const Example& batch, const MixOptions& options, CounterRandom& random);

}  // namespace lockstep::data
