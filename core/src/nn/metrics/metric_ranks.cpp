#include "metric_ranks.h"

#include <c10/util/Exception.h>

#include "nn/all_ranks.h"
#include "nn/device_backend.h"
#include "nn/same_on_all_ranks.h"

namespace lockstep::nn_detail {
namespace {

// The index of the first sample (row) that is marked.
std::int64_t first_marked(const torch::Tensor& marks) {
  return marks.flatten().nonzero()[0].item<std::int64_t>();
}

}  // namespace

void update_metric(std::string& first, const std::function<void()>& update) {
  try {
    update();
  } catch (const c10::Error& error) {
    if (first.empty()) first = error.what_without_backtrace();
    throw;
  }
}

void check_metric(const ProcessGroup& group, const std::string& description, const std::string& error) {
  const auto own_lines = [&] {
    TORCH_CHECK_VALUE(error.empty(), error, " (until reset() the metric lacks these samples)");
    return description;
  };
  if (!has_other_ranks(group)) return static_cast<void>(own_lines());
  check_same_lines(DeviceBackend::for_host_data(group, local_device()), own_lines, "compute() needs the same metric");
}

torch::Tensor gather_counts(const torch::Tensor& counts, const ProcessGroup& group) {
  if (!has_other_ranks(group)) return counts.unsqueeze(0);
  const DeviceBackend backend = DeviceBackend::for_host_data(group, local_device());
  return backend.all_gather(counts.to(backend.device())).cpu();
}

torch::Tensor sum_counts(const torch::Tensor& counts, const ProcessGroup& group) {
  if (!has_other_ranks(group)) return counts.clone();
  const DeviceBackend backend = DeviceBackend::for_host_data(group, local_device());
  const torch::Tensor sum = counts.to(backend.device(), counts.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  backend.start_sum(sum)->wait();
  return sum.cpu();
}

torch::Tensor checked_labels(const char* metric, const char* what, const torch::Tensor& labels, std::int64_t count,
                             std::int64_t classes) {
  TORCH_CHECK_VALUE(labels.defined() && at::isIntegralType(labels.scalar_type(), /*includeBool=*/true), metric,
                    ": expected integers as ", what, ", found ",
                    labels.defined() ? c10::str(labels.scalar_type()) : "an undefined tensor");
  TORCH_CHECK_VALUE(labels.dim() == 1 && labels.size(0) == count, metric, ": expected ", what, " {", count,
                    "}, one for each sample, found ", labels.sizes());
  torch::Tensor local = labels.detach().to(torch::kCPU, torch::kLong);
  const torch::Tensor outside = (local < 0).logical_or(local >= classes);
  if (outside.any().item<bool>()) {
    const std::int64_t index = first_marked(outside);
    TORCH_CHECK_VALUE(false, metric, ": ", what, "[", index, "] is ", local[index].item<std::int64_t>(),
                      ", expected 0 to ", classes - 1);
  }
  return local;
}

void check_scores(const char* metric, const torch::Tensor& scores) {
  TORCH_CHECK_VALUE(scores.defined() && at::isFloatingType(scores.scalar_type()), metric,
                    ": expected floating-point scores, found ",
                    scores.defined() ? c10::str(scores.scalar_type()) : "an undefined tensor");
  const torch::Tensor nan = scores.isnan();
  if (!nan.any().item<bool>()) return;
  const torch::Tensor rows = nan.dim() > 1 ? nan.flatten(1).any(1) : nan;
  TORCH_CHECK_VALUE(false, metric, ": the scores of sample ", first_marked(rows), " hold a NaN");
}

}  // namespace lockstep::nn_detail
