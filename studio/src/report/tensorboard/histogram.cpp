#include "report/tensorboard/histogram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace lockstep::report {
namespace {

std::vector<double> make_edges() {
  std::vector<double> positive;
  for (double edge = 1e-12; edge < 1e20; edge *= 1.1) positive.push_back(edge);  // NOLINT(bugprone-float-loop-counter)
  std::vector<double> edges;
  for (auto edge = positive.rbegin(); edge != positive.rend(); ++edge) edges.push_back(-*edge);
  edges.push_back(0.0);
  edges.insert(edges.end(), positive.begin(), positive.end());
  return edges;
}

// Bin i is from edges[i] to edges[i + 1], without that. Values beyond are in the first and the last bin.
std::size_t bin_of(double value, const std::vector<double>& edges) {
  const auto after = std::upper_bound(edges.begin(), edges.end(), value) - edges.begin();
  return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(after - 1, 0, std::ssize(edges) - 2));
}

}  // namespace

std::optional<Histogram> histogram(std::span<const float> values) {
  static const std::vector<double> edges = make_edges();
  Histogram result;
  std::vector<double> counts(edges.size() - 1);
  for (const float single : values) {
    if (!std::isfinite(single)) continue;
    const double value = single;
    result.min = result.count == 0 ? value : std::min(result.min, value);
    result.max = result.count == 0 ? value : std::max(result.max, value);
    result.sum += value;
    result.sum_of_squares += value * value;
    ++result.count;
    ++counts[bin_of(value, edges)];
  }
  if (result.count == 0) return std::nullopt;
  const std::size_t first = bin_of(result.min, edges);
  const std::size_t last = bin_of(result.max, edges);
  result.limits.push_back(edges[first]);
  result.counts.push_back(0.0);
  for (std::size_t i = first; i <= last; ++i) {
    result.limits.push_back(edges[i + 1]);
    result.counts.push_back(counts[i]);
  }
  return result;
}

}  // namespace lockstep::report
