// Which rank updates which parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::nn_detail {

// The rank of each of several parameters of these sizes: largest first (equal ones in their order), each to the rank
// with the least load so far (the lowest of equal ones), whose load then grows. PyTorch's ZeroRedundancyOptimizer does
// the same.
std::vector<int> assign_owners(const std::vector<std::int64_t>& sizes, std::vector<std::int64_t>& load);

}  // namespace lockstep::nn_detail
