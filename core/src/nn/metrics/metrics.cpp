#include "lockstep/nn/metrics.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "nn/all_ranks.h"
#include "nn/device_backend.h"
#include "nn/same_on_all_ranks.h"

namespace lockstep {
namespace {

// The index of the first sample (row) that is marked.
std::int64_t first_marked(const torch::Tensor& marks) {
  return marks.flatten().nonzero()[0].item<std::int64_t>();
}

// Calls `update`, which throws for wrong samples; notes its error in `first`, if that is empty, and throws it again.
void update_metric(std::string& first, const std::function<void()>& update) {
  try {
    update();
  } catch (const c10::Error& error) {
    if (first.empty()) first = error.what_without_backtrace();
    throw;
  }
}

// Collective. Throws on every rank if a rank has noted an `error`, or if their `descriptions` ("Accuracy of top 1, 5")
// differ.
void check_metric(const ProcessGroup& group, const std::string& description, const std::string& error) {
  const auto own_lines = [&] {
    TORCH_CHECK_VALUE(error.empty(), error, " (until reset() the metric lacks these samples)");
    return description;
  };
  if (!nn_detail::has_other_ranks(group)) return static_cast<void>(own_lines());
  nn_detail::check_same_lines(nn_detail::DeviceBackend::for_host_data(group, local_device()), own_lines,
                              "compute() needs the same metric");
}

// Collective, after check_metric(): {ranks, n} from the flat CPU tensors of all ranks, on the CPU.
torch::Tensor gather_counts(const torch::Tensor& counts, const ProcessGroup& group) {
  if (!nn_detail::has_other_ranks(group)) return counts.unsqueeze(0);
  const nn_detail::DeviceBackend backend = nn_detail::DeviceBackend::for_host_data(group, local_device());
  return backend.all_gather(counts.to(backend.device())).cpu();
}

// The same: the sum of those of all ranks, flat.
torch::Tensor sum_counts(const torch::Tensor& counts, const ProcessGroup& group) {
  if (!nn_detail::has_other_ranks(group)) return counts.clone();
  const nn_detail::DeviceBackend backend = nn_detail::DeviceBackend::for_host_data(group, local_device());
  const torch::Tensor sum = counts.to(backend.device(), counts.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  backend.start_sum(sum)->wait();
  return sum.cpu();
}

// Labels as int64 {N} on the CPU. A ValueError unless there are `count` integers in [0, classes).
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

// A ValueError unless `scores` is floating point without NaN.
void check_scores(const char* metric, const torch::Tensor& scores) {
  TORCH_CHECK_VALUE(scores.defined() && at::isFloatingType(scores.scalar_type()), metric,
                    ": expected floating-point scores, found ",
                    scores.defined() ? c10::str(scores.scalar_type()) : "an undefined tensor");
  const torch::Tensor nan = scores.isnan();
  if (!nan.any().item<bool>()) return;
  const torch::Tensor rows = nan.dim() > 1 ? nan.flatten(1).any(1) : nan;
  TORCH_CHECK_VALUE(false, metric, ": the scores of sample ", first_marked(rows), " hold a NaN");
}

void check_some(const char* metric, bool some) {
  TORCH_CHECK_VALUE(some, metric, ": no rank has a sample");
}

}  // namespace

double Average::compute(const ProcessGroup& group) const {
  check_metric(group, "Average", "");
  const torch::Tensor all = gather_counts(packed(), group);
  // One after the other: the same bits on every rank, whatever sum() does.
  Average total;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) total.merge(Average(all[rank]));
  check_some("Average", total.count() > 0);
  return total.value();
}

Accuracy::Accuracy(std::vector<std::int64_t> top_k) : top_k_(std::move(top_k)), correct_(top_k_.size()) {
  TORCH_CHECK_VALUE(!top_k_.empty() && *std::min_element(top_k_.begin(), top_k_.end()) >= 1,
                    "Accuracy: expected one k or more, each at least 1, found ", c10::IntArrayRef(top_k_));
}

void Accuracy::update(const torch::Tensor& scores, const torch::Tensor& labels) {
  update_metric(error_, [&] {
    check_scores("Accuracy", scores);
    TORCH_CHECK_VALUE(scores.dim() == 2, "Accuracy: expected scores {samples, classes}, found ", scores.sizes());
    const std::int64_t classes = scores.size(1);
    const std::int64_t most = *std::max_element(top_k_.begin(), top_k_.end());
    TORCH_CHECK_VALUE(classes >= most, "Accuracy: top ", most, " of ", classes, " classes");
    TORCH_CHECK_VALUE(classes_ == 0 || classes_ == classes, "Accuracy: scores for ", classes, " classes, but for ",
                      classes_, " before");
    const torch::Tensor target =
        checked_labels("Accuracy", "labels", labels, scores.size(0), classes).to(scores.device()).unsqueeze(1);
    const torch::NoGradGuard no_grad;
    const torch::Tensor own = scores.gather(1, target);
    const torch::Tensor lower = torch::arange(classes, target.options()).unsqueeze(0) < target;
    const torch::Tensor before = (scores > own).logical_or((scores == own).logical_and(lower)).sum(1);
    std::vector<std::int64_t> correct;
    correct.reserve(top_k_.size());
    for (const std::int64_t k : top_k_) correct.push_back((before < k).sum().item<std::int64_t>());
    for (std::size_t i = 0; i < correct.size(); ++i) correct_[i] += correct[i];
    count_ += scores.size(0);
    classes_ = classes;
  });
}

std::vector<double> Accuracy::compute(const ProcessGroup& group) const {
  check_metric(group, fmt::format("Accuracy of top {}", fmt::join(top_k_, ", ")), error_);
  std::vector<std::int64_t> counts = correct_;
  counts.insert(counts.end(), {count_, classes_});
  const torch::Tensor all = gather_counts(torch::tensor(counts, torch::kLong), group);
  // A rank without samples knows no classes.
  const torch::Tensor classes = all.select(1, all.size(1) - 1);
  const auto most = classes.max().item<std::int64_t>();
  TORCH_CHECK_VALUE(
      (classes == most).logical_or(classes == 0).all().item<bool>(),
      "Accuracy: ranks have scores for different numbers of classes (0: no samples): ",
      c10::IntArrayRef(classes.contiguous().const_data_ptr<std::int64_t>(), static_cast<std::size_t>(classes.numel())));
  const torch::Tensor sums = all.sum(0);
  const auto total = sums[sums.size(0) - 2].item<double>();
  check_some("Accuracy", total > 0);
  std::vector<double> result;
  result.reserve(top_k_.size());
  for (std::size_t i = 0; i < top_k_.size(); ++i)
    result.push_back(sums[static_cast<std::int64_t>(i)].item<double>() / total);
  return result;
}

void Accuracy::reset() {
  *this = Accuracy(top_k_);
}

ConfusionMatrix::ConfusionMatrix(std::int64_t num_classes) : num_classes_(num_classes) {
  TORCH_CHECK_VALUE(num_classes >= 1, "ConfusionMatrix: num_classes must be at least 1, found ", num_classes);
  counts_ = torch::zeros({num_classes, num_classes}, torch::kLong);
}

void ConfusionMatrix::update(const torch::Tensor& predictions, const torch::Tensor& labels) {
  update_metric(error_, [&] {
    torch::Tensor predicted = predictions;
    if (predictions.defined() && at::isFloatingType(predictions.scalar_type())) {
      check_scores("ConfusionMatrix", predictions);
      TORCH_CHECK_VALUE(predictions.dim() == 2 && predictions.size(1) == num_classes_,
                        "ConfusionMatrix: expected scores {samples, ", num_classes_, "}, found ", predictions.sizes());
      predicted = predictions.argmax(1);
    }
    const std::int64_t count = predicted.defined() && predicted.dim() > 0 ? predicted.size(0) : 0;
    const torch::Tensor columns = checked_labels("ConfusionMatrix", "predictions", predicted, count, num_classes_);
    const torch::Tensor rows = checked_labels("ConfusionMatrix", "labels", labels, count, num_classes_);
    // A new tensor: copies of this metric have the old one.
    counts_ =
        counts_ + torch::bincount(rows * num_classes_ + columns, {}, num_classes_ * num_classes_).view_as(counts_);
  });
}

torch::Tensor ConfusionMatrix::compute(const ProcessGroup& group) const {
  check_metric(group, fmt::format("ConfusionMatrix of {} classes", num_classes_), error_);
  const torch::Tensor sum = sum_counts(counts_.flatten(), group).view_as(counts_);
  check_some("ConfusionMatrix", sum.any().item<bool>());
  return sum;
}

void ConfusionMatrix::reset() {
  *this = ConfusionMatrix(num_classes_);
}

}  // namespace lockstep
