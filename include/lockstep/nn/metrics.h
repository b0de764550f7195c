// Averages that are exact also when ranks have different numbers of samples: each rank adds up a sum and a count, these
// are summed over ranks, and only then divided.
//
//   Average loss, accuracy;
//   for (...) {
//     loss.add(batch_loss_sum, batch_size);
//     accuracy.add(correct, batch_size);
//   }
//   torch::Tensor sums = torch::stack({loss.packed(), accuracy.packed()});
//   lockstep::all_reduce(sums);
//   double mean_loss = Average(sums[0]).value();
//
// Not thread-safe. Sums are doubles: whole numbers are exact up to 2^53.
#pragma once

#include <torch/torch.h>

#include <limits>

namespace lockstep {

class Average {
 public:
  Average() = default;
  explicit Average(const torch::Tensor& packed) : sum_(packed[0].item<double>()), count_(packed[1].item<double>()) {}

  void add(double sum, double count = 1.0) {
    sum_ += sum;
    count_ += count;
  }
  void merge(const Average& other) { add(other.sum_, other.count_); }

  double value() const { return count_ > 0.0 ? sum_ / count_ : std::numeric_limits<double>::quiet_NaN(); }
  double sum() const { return sum_; }
  double count() const { return count_; }

  // Double [2] on the CPU: sum and count, to be summed over ranks.
  torch::Tensor packed() const { return torch::tensor({sum_, count_}, torch::kDouble); }

 private:
  double sum_ = 0.0;
  double count_ = 0.0;
};

}  // namespace lockstep
