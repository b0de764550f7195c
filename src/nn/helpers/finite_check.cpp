#include "lockstep/nn/finite_check.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/log.h"
#include "named_gradients.h"
#include "nn/all_ranks.h"

namespace lockstep {

FiniteCheck::FiniteCheck(const torch::nn::Module& module, const FiniteCheckOptions& options)
    : module_(module), options_(options) {
  TORCH_CHECK_VALUE(options_.max_consecutive_skips >= 0,
                    "FiniteCheck: max_consecutive_skips must not be negative, got ", options_.max_consecutive_skips);
}

bool FiniteCheck::check(const torch::Tensor& loss) {
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "FiniteCheck: expected a loss of one number, got ",
                    loss.defined() ? c10::str(loss.sizes()) : "an undefined tensor");
  const torch::NoGradGuard no_grad;
  const auto gradients = nn_detail::gradient_values(nn_detail::distinct_parameters(module_));
  const torch::Tensor norm = nn_detail::total_norm(gradients, 2);
  const bool finite_norm = !norm.defined() || std::isfinite(norm.item<double>());
  const std::string bad_gradients = finite_norm ? "" : nn_detail::names_of_nonfinite(gradients);
  // Each rank sends one number. The largest double means: the loss is finite, but a gradient is not.
  const auto own = loss.item<double>();
  const double sent = std::isfinite(own) && !bad_gradients.empty() ? std::numeric_limits<double>::max() : own;
  std::string problem;
  bool any_gradient = false;
  const std::vector<double> all = nn_detail::of_all_ranks(sent, options_.group);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    any_gradient |= all[rank] == std::numeric_limits<double>::max();
    if (std::isfinite(all[rank])) continue;
    problem += fmt::format("{}the loss of rank {} is {}", problem.empty() ? "" : "; ", rank, all[rank]);
  }
  if (!bad_gradients.empty()) {
    problem += fmt::format("{}the gradient of {} is not finite", problem.empty() ? "" : "; ", bad_gradients);
  } else if (any_gradient) {
    problem += fmt::format("{}gradients of other ranks are not finite", problem.empty() ? "" : "; ");
  }
  const std::int64_t step = step_++;
  if (problem.empty()) {
    skipped_in_a_row_ = 0;
    return true;
  }
  const int rank = get_rank(options_.group);
  TORCH_CHECK(options_.policy == NonFinitePolicy::kSkip, "rank ", rank, ", step ", step, ": ", problem);
  ++skipped_;
  TORCH_CHECK(++skipped_in_a_row_ <= options_.max_consecutive_skips, "rank ", rank, ", step ", step, ": ", problem,
              "; this is step ", skipped_in_a_row_, " in a row that is not finite, and max_consecutive_skips is ",
              options_.max_consecutive_skips);
  if (rank == 0) log::warning(fmt::format("step {} is skipped: {}", step, problem));
  return false;
}

}  // namespace lockstep
