// Whose gradients were not finite before the mean over ranks took their place. Afterwards every rank has the NaN, and
// nobody can tell whose it was.
//
// While a FiniteCheck lives, reducers on the CPU look at each gradient of this rank before they send it: at all values
// of a small gradient, and at kMostLooked values, evenly spread, of a larger one. So a look costs microseconds. A NaN
// or an infinity of an activation fills whole rows of a gradient, which are seen. A single bad value of a large
// gradient may be missed.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/nn/reducer.h"
#include "parameter_users.h"

namespace lockstep::nn_detail {

inline constexpr std::int64_t kMostLooked = 4096;

// While the result lives, reducers look.
std::shared_ptr<const void> want_evidence();
bool is_evidence_wanted();

// Looks at dense values in the memory of the CPU. Integers are finite.
bool looks_finite(const torch::Tensor& values);
// For a reducer: what it sends as this rank's gradient of the parameter, in its sending pass `number`, counted from 1.
void note_evidence(const UsersPtr& users, std::uint64_t number, const torch::Tensor& values);

// The first pass in which a gradient of this rank was not finite, of those since the last call.
struct Evidence {
  std::uint64_t pass = 0;     // its number; 0: there was none
  std::uint64_t ago = 0;      // how many passes of the same reducer have come after it
  std::size_t parameter = 0;  // the first of this pass, an index in `parameters`
};
Evidence take_evidence(const std::vector<NamedParameter>& parameters);

}  // namespace lockstep::nn_detail
