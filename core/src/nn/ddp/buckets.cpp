#include "buckets.h"

#include <algorithm>
#include <map>

#include "base/arithmetic.h"

namespace lockstep::nn_detail {
namespace {

constexpr std::size_t kLine = 64;

struct Open {
  std::vector<std::size_t> members;
  std::size_t bytes = 0;
  std::size_t last = 0;  // position of its last member in the order: when it becomes complete
};

}  // namespace

std::size_t padded_elements(const GradientInfo& gradient) {
  const std::size_t per_line = std::max<std::size_t>(1, kLine / c10::elementSize(gradient.dtype));
  return round_up(gradient.elements, per_line);
}

std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<GradientInfo>& gradients,
                                                     const std::vector<std::size_t>& order, std::size_t first_cap,
                                                     std::size_t cap) {
  std::map<c10::ScalarType, Open> open;
  std::vector<Open> closed;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const GradientInfo& gradient = gradients[order[place]];
    if (gradient.sparse) continue;
    Open& bucket = open[gradient.dtype];
    bucket.members.push_back(order[place]);
    bucket.bytes += padded_elements(gradient) * c10::elementSize(gradient.dtype);
    bucket.last = place;
    if (bucket.bytes >= (closed.empty() ? first_cap : cap)) {
      closed.push_back(std::move(bucket));
      open.erase(gradient.dtype);
    }
  }
  for (auto& [dtype, bucket] : open) closed.push_back(std::move(bucket));
  std::sort(closed.begin(), closed.end(), [](const Open& a, const Open& b) { return a.last < b.last; });
  std::vector<std::vector<std::size_t>> result;
  result.reserve(closed.size());
  for (Open& bucket : closed) result.push_back(std::move(bucket.members));
  return result;
}

}  // namespace lockstep::nn_detail
