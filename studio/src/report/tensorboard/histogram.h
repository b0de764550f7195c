// Counts values in the bins that PyTorch's SummaryWriter uses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lockstep::report {

struct Histogram {
  double min = 0.0;
  double max = 0.0;
  double sum = 0.0;
  double sum_of_squares = 0.0;
  std::int64_t count = 0;
  // The right edge and the count of each bin, from the first bin with values to the last. An empty bin is in front, so
  // that the left edge of the first is known.
  std::vector<double> limits;
  std::vector<double> counts;
};

// Of the finite values; nullopt when there is none.
std::optional<Histogram> histogram(std::span<const float> values);

}  // namespace lockstep::report
