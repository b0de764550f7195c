// The distance between two samples of numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::test {

// The largest distance between the two empirical distribution functions (Kolmogorov-Smirnov). For two samples of n
// numbers from the same distribution, it exceeds 1.95 * sqrt(2 / n) once in a thousand times.
inline double distance(std::vector<double> a, std::vector<double> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  double largest = 0.0;
  for (const double value : a) {
    const auto below = [&](const std::vector<double>& list) {
      return static_cast<double>(std::upper_bound(list.begin(), list.end(), value) - list.begin()) /
             static_cast<double>(list.size());
    };
    largest = std::max(largest, std::abs(below(a) - below(b)));
  }
  return largest;
}

inline double distance_bound(std::size_t count) {
  return 1.95 * std::sqrt(2.0 / static_cast<double>(count));
}

}  // namespace lockstep::test
