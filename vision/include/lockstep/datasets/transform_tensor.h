// Transforms of pictures that are tensors already, such as pictures of a TensorDataset or of a simulation:
//
//   Compose augment({RandomCrop{.size = 32, .padding = Padding{4}}, RandomHorizontalFlip{}, ToTensor{}});
//   auto train = map_dataset(pictures, [augment](Example sample, const SampleContext& context) {
//     const SampleKey key{context.seed, context.epoch, context.keys[0]};
//     return Example(transform_tensor(augment, sample.data, key), sample.target);
//   });
#pragma once

#include <torch/types.h>

#include "lockstep/transforms/compose.h"

namespace lockstep::data {

// `picture` is uint8 [3, height, width] or [1, height, width], on the CPU, with any strides, and is not changed.
// Returns a new tensor: the sample that an ImageFolder with these transforms gives for a file with these pixels. The
// arithmetic is PIL's. A picture with one channel keeps one channel, unless Grayscale{3} is among the transforms. `key`
// decides the random parameters. Throws DataError (kInvalidArgument). Several threads may call it at once.
torch::Tensor transform_tensor(const Compose& transforms, const torch::Tensor& picture, const SampleKey& key = {});

}  // namespace lockstep::data
