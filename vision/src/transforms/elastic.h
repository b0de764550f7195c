// The displacements of ElasticTransform.
#pragma once

#include <vector>

#include "image/elastic.h"
#include "transforms/step.h"

namespace lockstep::data {

// `count` numbers in [-1, 1), with 24 random bits. `plane`: noises of one key that do not overlap.
void uniform_noise(const NoiseKey& key, std::uint32_t plane, std::size_t count, std::vector<float>& noise);

// Turns noise into the displacement along one axis: smooths it with the kernel that torchvision takes for `sigma` of
// that axis, and scales it by alpha / side.
void displacement_of_noise(std::vector<float>& noise, ImageSize size, const PerAxis& sigma, bool along_x, double alpha);

void run_elastic(const ElasticStep& step, const View& picture, RowSink& sink);

}  // namespace lockstep::data
