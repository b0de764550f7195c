// Whose gradients were not finite before the mean over ranks took their place. Afterwards every rank has the NaN, and
// nobody can tell whose it was.
//
// While a FiniteCheck lives, reducers on the CPU look at each gradient of this rank before they send it: at all values
// of a small gradient, and at kLooked to 2 * kLooked values, evenly spread, of a larger one. So a look costs
// microseconds, and tens of microseconds for a large gradient, whose values are far apart. A NaN or an infinity of an
// activation fills whole rows of a gradient. Each row of a matrix of up to kLooked rows is seen. A bad row of a taller
// matrix and a single bad value of a large gradient may be missed.
//
// Ranks compare when they had their first bad gradient. Reducers count their passes, but several reducers, of other
// groups too, count differently. So evidence has a moment: checks, which all ranks of a check make together, divide the
// time of a process into moments. The numbers of passes order evidence of one parameter within one moment.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/nn/reducer.h"
#include "parameter_users.h"

namespace lockstep::nn_detail {

inline constexpr std::int64_t kLooked = 4096;

// While the result lives, reducers look.
std::shared_ptr<const void> want_evidence();
bool is_evidence_wanted();

// Looks at dense values in the memory of the CPU. Integers are finite.
bool looks_finite(const torch::Tensor& values);
// Begins the next moment of this process, and returns its number. A check calls this at its end.
std::uint64_t next_moment();
// From now on later evidence takes the place of evidence that is older than this moment. Returns `moment`. Of several
// checks the last one's moment counts.
std::uint64_t forget_evidence_before(std::uint64_t moment);

// For a reducer: what it sends as this rank's gradient of the parameter, in its sending pass `number`, counted from 1.
void note_evidence(const UsersPtr& users, std::uint64_t number, const torch::Tensor& values);

// The first pass of the moment `since` or a later one in which a gradient of this rank was not finite.
struct Evidence {
  std::uint64_t moment = 0;   // 0: there was none
  std::uint64_t pass = 0;     // the reducer's number of the pass
  std::size_t parameter = 0;  // the first of this pass, an index in `parameters`
};
Evidence find_evidence(const std::vector<NamedParameter>& parameters, std::uint64_t since);
// The ranks whose evidence is the oldest. `rows`: by rank, how many steps ago it was (-1: there is none), the parameter
// and the pass. In later passes of a step all ranks have the bad gradient of an earlier pass.
std::vector<std::size_t> first_ranks(const std::vector<std::vector<double>>& rows);

}  // namespace lockstep::nn_detail
