// The state of hooks in checkpoints: counters by name, and tensors of buckets as "bucket.INDEX.NAME".
#pragma once

#include <map>
#include <set>
#include <string>

#include "hook_channel.h"

namespace lockstep::nn_detail {

using NamedTensors = std::map<std::string, torch::Tensor>;

torch::Tensor counter(std::int64_t value);
// Throws a ValueError where it is missing or no number.
std::int64_t read_counter(const NamedTensors& tensors, const std::string& name);

// Throws a ValueError for a counter, or a NAME of a bucket, that is not in `own`: the state of another kind of hook.
void check_names(const NamedTensors& tensors, const std::set<std::string>& own);

// For descriptions, which ranks compare: all of them must have loaded the same pass, or none.
std::string continued(std::int64_t loaded_iteration);

// Adds `tensor` of bucket `index` to `all`, if it is defined.
void add_of_bucket(NamedTensors& all, std::size_t index, const std::string& name, const torch::Tensor& tensor);

// NAME of BucketContent::shapes(), which each saved bucket has.
inline constexpr const char* kShapes = "shapes";

// Forgets what was kept about buckets after this one. Where a bucket is another one than in the last pass, the wrapper
// has built all that follow it anew, also those that look the same; where a bucket is the last one, there are none. No
// bucket after the one that is being started is under way, so nobody refers to these entries.
template <typename Memory>
void forget_after(std::size_t index, std::map<std::size_t, Memory>& memories) {
  memories.erase(memories.upper_bound(index), memories.end());
}

// Tensors that were loaded and wait for their buckets.
class WaitingBuckets {
 public:
  // All "bucket.*" of `tensors`.
  void load(const NamedTensors& tensors);
  // What was loaded for this bucket, by NAME; once. Empty if it was saved for a bucket of other shapes (logged).
  NamedTensors take(GradBucket& bucket);
  // Adds what still waits, for a hook that is saved before it has seen a bucket.
  void add_to(NamedTensors& all) const;

 private:
  std::map<std::size_t, NamedTensors> by_bucket_;
};

}  // namespace lockstep::nn_detail
