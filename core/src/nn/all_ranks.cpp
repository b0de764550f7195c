#include "nn/all_ranks.h"

#include <torch/types.h>

#include "nn/device_backend.h"

namespace lockstep::nn_detail {

bool has_other_ranks(const ProcessGroup& group) {
  return (group || is_initialized()) && get_world_size(group) > 1;
}

std::vector<double> of_all_ranks(double value, const ProcessGroup& group) {
  std::vector<double> values;
  for (const std::vector<double>& row : rows_of_all_ranks({value}, group)) values.push_back(row.front());
  return values;
}

std::vector<std::vector<double>> rows_of_all_ranks(const std::vector<double>& values, const ProcessGroup& group) {
  const DeviceBackend backend = DeviceBackend::for_host_data(group, local_device());
  const torch::Tensor all = backend.all_gather(torch::tensor(values, torch::kDouble).to(backend.device())).cpu();
  std::vector<std::vector<double>> rows;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const double* const row = all.const_data_ptr<double>() + rank * all.size(1);
    rows.emplace_back(row, row + all.size(1));
  }
  return rows;
}

}  // namespace lockstep::nn_detail
