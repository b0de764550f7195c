#include "late_numbers.h"

#include "c10d/staging.h"
#include "c10d/streams.h"

namespace lockstep::nn_detail {

LateNumbers::LateNumbers(const torch::Tensor& numbers)
    : host_(make_host_memory(numbers)), copied_(numbers.device().type()) {
  host_.copy_(numbers, /*non_blocking=*/true);
  copied_.record(current_stream(numbers.device()));
}

std::vector<double> LateNumbers::read() {
  if (!copied_.query()) copied_.synchronize();
  const auto* const values = host_.const_data_ptr<double>();
  return {values, values + host_.numel()};
}

}  // namespace lockstep::nn_detail
