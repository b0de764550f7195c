#include "all_ranks.h"

#include <torch/types.h>

#include "lockstep/c10d/collectives.h"

namespace lockstep::nn_detail {

bool has_other_ranks(const ProcessGroup& group) {
  return (group || is_initialized()) && get_world_size(group) > 1;
}

std::vector<double> of_all_ranks(double value, const ProcessGroup& group) {
  const auto options = torch::TensorOptions().dtype(torch::kDouble).device(local_device());
  const torch::Tensor all = torch::empty({get_world_size(group)}, options);
  all_gather_into_tensor(all, torch::full({1}, value, options), {.group = group});
  const torch::Tensor local = all.cpu();
  return {local.const_data_ptr<double>(), local.const_data_ptr<double>() + local.numel()};
}

}  // namespace lockstep::nn_detail
