#include "lockstep/nn/gradient_accumulation.h"

#include "lockstep/c10d/collectives.h"

namespace lockstep {

double sample_mean_factor(std::int64_t samples, const ProcessGroup& group) {
  TORCH_CHECK_VALUE(samples >= 0, "sample_mean_factor: expected a number of samples, got ", samples);
  const torch::Tensor sum =
      torch::full({1}, samples, torch::TensorOptions().dtype(torch::kInt64).device(local_device()));
  all_reduce(sum, {.group = group});
  const auto all = sum.item<std::int64_t>();
  TORCH_CHECK_VALUE(all > 0, "sample_mean_factor: no rank has a sample in this step");
  return static_cast<double>(get_world_size(group)) / static_cast<double>(all);
}

}  // namespace lockstep
