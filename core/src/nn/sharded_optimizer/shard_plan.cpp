#include "shard_plan.h"

#include <algorithm>
#include <numeric>

namespace lockstep::nn_detail {

std::vector<int> assign_owners(const std::vector<std::int64_t>& sizes, std::vector<std::int64_t>& load) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<int> owners(sizes.size());
  for (const std::size_t index : order) {
    const auto least = std::min_element(load.begin(), load.end());
    owners[index] = static_cast<int>(least - load.begin());
    *least += sizes[index];
  }
  return owners;
}

}  // namespace lockstep::nn_detail
