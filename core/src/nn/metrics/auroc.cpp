#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cmath>

#include "lockstep/nn/metrics.h"
#include "metric_ranks.h"
#include "nn/all_ranks.h"
#include "nn/device_backend.h"

namespace lockstep {
namespace {

// Different scores in ascending order, and how many samples of the class and of others have each: double {3, n}. Counts
// are whole numbers, which doubles hold exactly.
torch::Tensor compressed(const torch::Tensor& scores, const torch::Tensor& weights) {
  const auto [values, places] = at::_unique(scores, /*sorted=*/true, /*return_inverse=*/true);
  torch::Tensor counts = torch::zeros({2, values.numel()}, torch::kDouble);
  counts.index_add_(1, places, weights);
  return torch::cat({values.unsqueeze(0), counts});
}

// Scores of one class on this rank, compressed.
torch::Tensor compressed(const torch::Tensor& scores, const torch::Tensor& labels, std::int64_t label) {
  const torch::Tensor positive = labels == label;
  return compressed(scores.to(torch::kDouble), torch::stack({positive, positive.logical_not()}).to(torch::kDouble));
}

// Those of all ranks.
torch::Tensor of_all_ranks(const torch::Tensor& own, const ProcessGroup& group) {
  if (!nn_detail::has_other_ranks(group)) return own;
  const nn_detail::DeviceBackend backend = nn_detail::DeviceBackend::for_host_data(group, local_device());
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& part : backend.all_gather_uneven(own.flatten().to(backend.device())))
    parts.push_back(part.cpu().view({3, part.numel() / 3}));
  const torch::Tensor all = torch::cat(parts, 1);
  return compressed(all[0], all.slice(0, 1));
}

struct Curve {
  double area = 0;  // NaN without positive or without negative samples
  double positive = 0;
  double negative = 0;
};

// Mann and Whitney's U, divided by the number of pairs. Twice U is a sum of whole numbers.
Curve curve_of(const torch::Tensor& counts) {
  const torch::Tensor positive = counts[1];
  const torch::Tensor negative = counts[2];
  Curve curve;
  curve.positive = positive.sum().item<double>();
  curve.negative = negative.sum().item<double>();
  const torch::Tensor twice_below = negative.cumsum(0) * 2 - negative;
  curve.area = (positive * twice_below).sum().item<double>() / (2 * curve.positive * curve.negative);
  return curve;
}

std::vector<Curve> curves_of(const std::vector<torch::Tensor>& scores, const std::vector<torch::Tensor>& labels,
                             std::int64_t num_classes, const ProcessGroup& group) {
  const std::int64_t count = num_classes == 2 ? 1 : num_classes;
  const torch::Tensor all_scores = scores.empty() ? torch::zeros({0, count}) : torch::cat(scores);
  const torch::Tensor all_labels = labels.empty() ? torch::zeros({0}, torch::kLong) : torch::cat(labels);
  std::vector<Curve> curves;
  for (std::int64_t curve = 0; curve < count; ++curve) {
    const std::int64_t label = num_classes == 2 ? 1 : curve;
    curves.push_back(curve_of(of_all_ranks(compressed(all_scores.select(1, curve), all_labels, label), group)));
  }
  TORCH_CHECK_VALUE(curves[0].positive + curves[0].negative > 0, "Auroc: no rank has a sample");
  return curves;
}

}  // namespace

Auroc::Auroc(std::int64_t num_classes) : num_classes_(num_classes) {
  TORCH_CHECK_VALUE(num_classes >= 2, "Auroc: num_classes must be at least 2, found ", num_classes);
}

void Auroc::update(const torch::Tensor& scores, const torch::Tensor& labels) {
  nn_detail::update_metric(error_, [&] {
    nn_detail::check_scores("Auroc", scores);
    const bool binary = num_classes_ == 2 && scores.dim() == 1;
    TORCH_CHECK_VALUE(binary || (scores.dim() == 2 && scores.size(1) == num_classes_),
                      "Auroc: expected scores {samples, ", num_classes_, "}", num_classes_ == 2 ? " or {samples}" : "",
                      ", found ", scores.sizes());
    const torch::Tensor local = nn_detail::checked_labels("Auroc", "labels", labels, scores.size(0), num_classes_);
    const torch::Tensor columns = binary ? scores.unsqueeze(1) : num_classes_ == 2 ? scores.slice(1, 1) : scores;
    // Copies: the caller may write to its tensors again. Float holds what smaller types hold.
    const torch::Dtype dtype = scores.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    scores_.push_back(columns.detach().to(torch::kCPU, dtype, /*non_blocking=*/false, /*copy=*/true));
    labels_.push_back(local.clone());
  });
}

std::vector<double> Auroc::compute_per_class(const ProcessGroup& group) const {
  nn_detail::check_metric(group, fmt::format("Auroc of {} classes", num_classes_), error_);
  std::vector<double> areas;
  for (const Curve& curve : curves_of(scores_, labels_, num_classes_, group)) areas.push_back(curve.area);
  return areas;
}

double Auroc::compute(const ProcessGroup& group) const {
  nn_detail::check_metric(group, fmt::format("Auroc of {} classes", num_classes_), error_);
  const std::vector<Curve> curves = curves_of(scores_, labels_, num_classes_, group);
  double sum = 0;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    TORCH_CHECK_VALUE(curves[i].positive > 0 && curves[i].negative > 0, "Auroc: class ", num_classes_ == 2 ? 1 : i,
                      " has no area under its curve: ", curves[i].positive, " samples are of this class and ",
                      curves[i].negative, " of others");
    sum += curves[i].area;
  }
  return sum / static_cast<double>(curves.size());
}

void Auroc::reset() {
  *this = Auroc(num_classes_);
}

}  // namespace lockstep
