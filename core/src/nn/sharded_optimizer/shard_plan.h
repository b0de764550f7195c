// Which rank updates which parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::nn_detail {

// Returns the owner of each parameter. Goes through the parameters from the largest to the smallest (equal sizes in
// their order). The rank with the least load gets the next parameter (among equal loads the lowest rank), and its load
// grows by the size. PyTorch's ZeroRedundancyOptimizer does the same.
std::vector<int> assign_owners(const std::vector<std::int64_t>& sizes, std::vector<std::int64_t>& load);

}  // namespace lockstep::nn_detail
