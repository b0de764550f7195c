// Which parameters several reducers of this process reduce: an encoder that two wrapped models share, a wrapper inside
// a wrapper. The gradient of such a parameter must not lie in a bucket, because the other reducer reads it while the
// bucket is being reduced.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/c10d/process_groups.h"

namespace lockstep::nn_detail {

// One for each parameter. Every reducer of the parameter holds it, so `use_count` tells how many there are.
struct ParameterUsers {
  explicit ParameterUsers(const std::vector<int>& the_ranks) : ranks(the_ranks) {}

  std::vector<int> ranks;                     // of the world: those of the first reducer
  std::vector<std::weak_ptr<void>> reducers;  // all that have ever joined
  // The moment and the number of the first pass in which this rank's gradient was not finite, in one word
  // (gradient_evidence.cpp); 0: none.
  mutable std::atomic<std::uint64_t> bad_pass{0};
};
using UsersPtr = std::shared_ptr<const ParameterUsers>;

// The ranks of the world that are in `group`. Empty without a world.
std::vector<int> ranks_of(const ProcessGroup& group);

// `reducer` joins the users of `parameter`. It keeps the parameter alive for as long as the result.
UsersPtr join_users(const torch::Tensor& parameter, const std::vector<int>& ranks, std::weak_ptr<void> reducer);
// Null if no reducer reduces it.
UsersPtr users_of(const torch::Tensor& parameter);
// Those that still live.
std::vector<std::shared_ptr<void>> reducers_of(const UsersPtr& users);

// Grows whenever a reducer comes or goes.
std::uint64_t users_version();
void count_user_change();

}  // namespace lockstep::nn_detail
