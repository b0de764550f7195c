// What all metrics do: refuse wrong samples, and exchange counts.
#pragma once

#include <torch/types.h>

#include <functional>
#include <string>

#include "lockstep/c10d/process_groups.h"

namespace lockstep::nn_detail {

// Calls `update`, which throws for wrong samples; notes its error in `first`, if that is empty, and throws it again.
void update_metric(std::string& first, const std::function<void()>& update);

// Collective. Throws on every rank if a rank has noted an `error`, or if their `descriptions` ("Accuracy of top 1, 5")
// differ.
void check_metric(const ProcessGroup& group, const std::string& description, const std::string& error);

// Collective, after check_metric(): {ranks, n} from the flat CPU tensors of all ranks, on the CPU.
torch::Tensor gather_counts(const torch::Tensor& counts, const ProcessGroup& group);
// The same: the sum of those of all ranks, flat.
torch::Tensor sum_counts(const torch::Tensor& counts, const ProcessGroup& group);

// Labels as int64 {N} on the CPU. A ValueError unless there are `count` integers in [0, classes).
torch::Tensor checked_labels(const char* metric, const char* what, const torch::Tensor& labels, std::int64_t count,
                             std::int64_t classes);
// A ValueError unless `scores` is floating point without NaN.
void check_scores(const char* metric, const torch::Tensor& scores);

}  // namespace lockstep::nn_detail
