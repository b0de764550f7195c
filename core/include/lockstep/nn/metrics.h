// Metrics over the ranks of a group. They are exact even if ranks have different numbers of samples, or none.
//
//   Average loss;
//   Accuracy accuracy({1, 5});
//   ConfusionMatrix confusion(10);
//   for (auto& [images, labels] : loader) {
//     const torch::Tensor logits = net->forward(images);
//     loss.add(loss_sum_of(logits, labels), static_cast<double>(labels.size(0)));
//     accuracy.update(logits, labels);
//     confusion.update(logits, labels);
//   }
//   const double mean_loss = loss.compute();
//   const std::vector<double> top_1_and_5 = accuracy.compute();
//   const torch::Tensor matrix = confusion.compute();
//
// add() and update() are local: ranks may call them as often as they like. compute() is collective over the group
// (null: the world, if there is one; without a world, this process alone). It adds up the counts of all ranks, gives
// every rank the same bits, and changes nothing: more samples may follow. reset() begins again.
//
// Wrong samples are a ValueError (c10::ValueError) that says which sample is wrong. They are not counted, so the metric
// is no longer exact: until reset(), compute() throws on every rank, and names the rank with the wrong samples and its
// error. So no rank waits for a rank that has failed, as long as the failed rank still calls compute(). compute() also
// throws on every rank if ranks disagree (another metric, another number of classes), or if there are no samples at
// all.
//
// Tensors may be on any device. Counts are 64-bit integers. Not thread-safe.
#pragma once

#include <torch/types.h>

#include <limits>
#include <string>
#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep {

// A mean: sums and counts are added up, and only then divided. Sums are doubles: whole numbers are exact up to 2^53.
//
// compute() sends one message. To send several averages in one, pack them:
//
//   torch::Tensor sums = torch::stack({loss.packed(), accuracy.packed()});
//   lockstep::all_reduce(sums);
//   double mean_loss = Average(sums[0]).value();
class Average {
 public:
  Average() = default;
  explicit Average(const torch::Tensor& packed) : sum_(packed[0].item<double>()), count_(packed[1].item<double>()) {}

  void add(double sum, double count = 1.0) {
    sum_ += sum;
    count_ += count;
  }
  void merge(const Average& other) { add(other.sum_, other.count_); }
  void reset() { *this = Average(); }

  // Collective: the mean over all ranks.
  double compute(const ProcessGroup& group = nullptr) const;

  // The sum, the count and the mean of this rank alone. The mean of 0 values is NaN.
  double value() const { return count_ > 0.0 ? sum_ / count_ : std::numeric_limits<double>::quiet_NaN(); }
  double sum() const { return sum_; }
  double count() const { return count_; }

  // Returns sum and count of this rank, double [2] on the CPU. Add these up over the ranks.
  torch::Tensor packed() const { return torch::tensor({sum_, count_}, torch::kDouble); }

 private:
  double sum_ = 0.0;
  double count_ = 0.0;
};

// The share of the samples whose label is among the k classes with the largest scores. Among classes with equal scores,
// the class with the lower number comes first.
class Accuracy {
 public:
  // The ks; each at least 1.
  explicit Accuracy(std::vector<std::int64_t> top_k = {1});

  // scores: floating point {N, C}, without NaN, for at least max(top_k) classes. labels: integers {N} in [0, C).
  void update(const torch::Tensor& scores, const torch::Tensor& labels);
  // Collective: a number in [0, 1] for each k.
  std::vector<double> compute(const ProcessGroup& group = nullptr) const;
  void reset();

 private:
  std::vector<std::int64_t> top_k_;
  std::vector<std::int64_t> correct_;  // for each k
  std::int64_t count_ = 0;
  std::int64_t classes_ = 0;  // 0: not known yet
  std::string error_;         // the first error of update()
};

// How often samples of class i (rows) were taken for class j (columns).
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(std::int64_t num_classes);

  // predictions: integers {N}, or scores, floating point {N, num_classes} without NaN: the class with the largest
  // score counts.
  // labels: integers {N}. Both in [0, num_classes).
  void update(const torch::Tensor& predictions, const torch::Tensor& labels);
  // Collective: int64 {num_classes, num_classes} on the CPU.
  torch::Tensor compute(const ProcessGroup& group = nullptr) const;
  void reset();

 private:
  std::int64_t num_classes_;
  torch::Tensor counts_;
  std::string error_;
};

// The area under the ROC curve of a class: the probability that a sample of this class has a larger score for the class
// than a sample of another class has. Equal scores count one half. The area is exact: scores are not put into bins. So
// each rank keeps all scores of its samples, and compute() brings the scores of all ranks to each rank, class by class.
// Equal scores are sent once, in 24 bytes.
class Auroc {
 public:
  // At least 2. With 2 classes there is one curve, the curve of class 1.
  explicit Auroc(std::int64_t num_classes = 2);

  // labels: integers {N} in [0, num_classes). scores: floating point without NaN, infinite ones are allowed; {N,
  // num_classes}, or for 2 classes {N}, the scores of class 1.
  void update(const torch::Tensor& scores, const torch::Tensor& labels);
  // Collective: for 2 classes the area; for more the mean of the areas of each class against all others (macro). A
  // class that has no samples, or all samples, has no area: a ValueError names the class.
  double compute(const ProcessGroup& group = nullptr) const;
  // Collective: the area of each class (for 2 classes: of class 1 alone). NaN for a class without an area.
  std::vector<double> compute_per_class(const ProcessGroup& group = nullptr) const;
  void reset();

 private:
  std::int64_t num_classes_;
  std::vector<torch::Tensor> scores_;  // {N, curves}
  std::vector<torch::Tensor> labels_;
  std::string error_;
};

}  // namespace lockstep
