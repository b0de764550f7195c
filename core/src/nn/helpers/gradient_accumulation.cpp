#include "lockstep/nn/gradient_accumulation.h"

#include "nn/device_backend.h"

namespace lockstep {

// A group may have no backend for the CPU.
double sample_mean_factor(std::int64_t samples, const ProcessGroup& group) {
  TORCH_CHECK_VALUE(samples >= 0, "sample_mean_factor: expected a number of samples, got ", samples);
  const nn_detail::DeviceBackend backend = nn_detail::DeviceBackend::for_host_data(group, local_device());
  const torch::Tensor sum = torch::full({1}, samples, torch::kInt64).to(backend.device());
  backend.start_sum(sum)->wait();
  const auto all = sum.item<std::int64_t>();
  TORCH_CHECK_VALUE(all > 0, "sample_mean_factor: no rank has a sample in this step");
  return static_cast<double>(backend.world_size()) / static_cast<double>(all);
}

}  // namespace lockstep
