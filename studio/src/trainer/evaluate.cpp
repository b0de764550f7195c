#include <algorithm>

#include "lockstep/nn/metrics.h"
#include "loop.h"
#include "nn/all_ranks.h"

namespace lockstep {
namespace {

// Evaluation mode for a scope.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& model) : model_(model), was_training_(model.is_training()) { model_.eval(); }
  ~Evaluating() { model_.train(was_training_); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  torch::nn::Module& model_;
  bool was_training_;
};

bool of_any_rank(bool value) {
  const std::vector<double> all = nn_detail::of_all_ranks(value ? 1.0 : 0.0, nullptr);
  return *std::max_element(all.begin(), all.end()) > 0;
}

// Scores in which a sample with a NaN is a wrong answer: -1 for its label, 0 for all other classes. The metrics refuse
// NaN, so one such sample would end the training, and each one that is resumed. Scores that do not fit the labels stay
// as they are: the metrics say what is wrong with them.
torch::Tensor without_nan(const torch::Tensor& scores, const torch::Tensor& labels) {
  if (scores.dim() != 2 || !labels.defined() || labels.dim() != 1 || labels.size(0) != scores.size(0)) return scores;
  const torch::Tensor broken = scores.isnan().any(1, /*keepdim=*/true);
  if (!broken.any().item<bool>()) return scores;
  const torch::Tensor classes = torch::arange(scores.size(1), scores.options().dtype(torch::kLong));
  const torch::Tensor is_label = classes.unsqueeze(0) == labels.to(scores.device()).unsqueeze(1);
  return torch::where(broken, is_label.to(scores.scalar_type()).neg(), scores);
}

}  // namespace

Evaluation Trainer::Loop::evaluate(Feed& feed) {
  const auto start = trainer_detail::Clock::now();
  const torch::NoGradGuard no_grad;
  std::optional<ExponentialMovingAverage::Guard> averaged;
  if (auto& averages = step_.averages(); averages && averages->updates() > 0) averaged.emplace(*averages);
  const Evaluating evaluating(*model_);
  Average loss;
  Accuracy accuracy(options_.top_k);
  std::optional<ConfusionMatrix> confusion;
  if (options_.confusion_classes > 0) confusion.emplace(options_.confusion_classes);
  bool has_scores = false;
  const bool is_held = rewind(feed);
  feed.begin();
  for (std::int64_t batch = 0; (options_.limit_batches == 0 || batch < options_.limit_batches) && feed.next();
       ++batch) {
    const StepOutput output = step_.forward(feed);
    loss.add(output.loss.item<double>() * static_cast<double>(output.samples), static_cast<double>(output.samples));
    if (!output.scores.defined()) continue;
    has_scores = true;
    const torch::Tensor scores = without_nan(output.scores.to(torch::kFloat), output.labels);
    accuracy.update(scores, output.labels);
    if (confusion) confusion->update(scores, output.labels);
  }
  feed.end();
  go_back(feed, is_held);
  Evaluation result;
  result.epoch = progress().epoch;
  result.step = progress().step;
  for (const double count : nn_detail::of_all_ranks(loss.count(), nullptr)) {
    result.samples += static_cast<std::int64_t>(count);
  }
  TORCH_CHECK_VALUE(result.samples > 0, "Trainer: the evaluation's loader has no samples");
  result.loss = loss.compute();
  if (of_any_rank(has_scores)) {
    result.accuracies = accuracy.compute();
    if (confusion) result.confusion = confusion->compute();
  }
  result.seconds = trainer_detail::seconds_since(start);
  return result;
}

}  // namespace lockstep
