#include "lockstep/nn/grad_scaler.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "nn/all_ranks.h"

namespace lockstep {
namespace {

// What a rank tells the others about its gradients.
constexpr double kFinite = 0;
constexpr double kNotFinite = 1;
constexpr double kNone = 2;
constexpr double kHalf = 3;

using ByKind = std::map<std::pair<std::string, torch::Dtype>, std::vector<torch::Tensor>>;  // by device and dtype

// The memory of all gradients: the values of sparse ones. Each once: LibTorch's Module::parameters() has a parameter
// that layers share several times, and its gradient must not be divided as often.
ByKind gradients_of(const torch::optim::Optimizer& optimizer) {
  ByKind result;
  std::unordered_set<const void*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      const torch::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || !seen.insert(gradient.unsafeGetTensorImpl()).second) continue;
      const torch::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
      result[{values.device().str(), values.scalar_type()}].push_back(values);
    }
  }
  return result;
}

bool has_half(const ByKind& gradients) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [](const auto& entry) { return entry.first.second == torch::kHalf; });
}

// Multiplies them in place. Whether all are finite.
bool multiply(ByKind& gradients, const torch::Tensor& factor) {
  bool finite = true;
  for (auto& [kind, tensors] : gradients) {
    const torch::Device device = tensors.front().device();
    torch::Tensor found = torch::zeros({}, torch::TensorOptions().dtype(torch::kFloat).device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found, factor.to(device));
    finite = finite && found.item<float>() == 0;
  }
  return finite;
}

// `all`: by rank, what the rank tells about its gradients, and its scale. The ranks' gradients were averaged with these
// scales in them.
void check_same_scale(const std::vector<std::vector<double>>& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank][1] == all[0][1], "GradScaler: the scale is ", all[0][1], " on rank 0 and ",
                      all[rank][1], " on rank ", rank,
                      ", so the mean of their gradients has no meaning; give every rank the same options, and the same "
                      "state by load_state_dict");
  }
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options_.growth_factor > 1, "GradScaler: growth_factor must be above 1, got ",
                    options_.growth_factor);
  TORCH_CHECK_VALUE(options_.backoff_factor > 0 && options_.backoff_factor < 1,
                    "GradScaler: backoff_factor must be between 0 and 1, got ", options_.backoff_factor);
  TORCH_CHECK_VALUE(options_.growth_interval >= 1, "GradScaler: growth_interval must be at least 1, got ",
                    options_.growth_interval);
  TORCH_CHECK_VALUE(options_.init_scale > 0, "GradScaler: init_scale must be positive, got ", options_.init_scale);
  scale_ = torch::full({}, options_.init_scale, torch::kFloat);
  growth_tracker_ = torch::zeros({}, torch::kInt);
}

torch::Tensor GradScaler::scale(const torch::Tensor& outputs) const {
  return options_.enabled ? outputs * scale_.to(outputs.device()) : outputs;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  Progress& progress = progress_[&optimizer];
  TORCH_CHECK(progress.stage != Stage::kStepped, "GradScaler: unscale_() after step(); call update() first");
  TORCH_CHECK(progress.stage == Stage::kReady,
              "GradScaler: unscale_() has been called for this optimizer already since the last update()");
  const torch::NoGradGuard no_grad;
  ByKind gradients = gradients_of(optimizer);
  double own = gradients.empty() ? kNone : kHalf;
  if (own == kHalf && !has_half(gradients)) {
    const torch::Tensor inverse = scale_.to(torch::kDouble).reciprocal().to(torch::kFloat);
    own = multiply(gradients, inverse) ? kFinite : kNotFinite;
  }
  std::vector<std::vector<double>> all{{own, get_scale()}};
  if (nn_detail::has_other_ranks(options_.group)) all = nn_detail::rows_of_all_ranks(all.front(), options_.group);
  check_same_scale(all);
  const auto has = [&](double finding) {
    return std::any_of(all.begin(), all.end(), [&](const std::vector<double>& row) { return row[0] == finding; });
  };
  TORCH_CHECK_VALUE(!has(kHalf), "GradScaler: ", own == kHalf ? "this rank" : "another rank",
                    " has gradients in half precision, which cannot hold what unscaling makes of them; give the "
                    "optimizer the float copies of MasterWeights");
  progress = {Stage::kUnscaled, has(kFinite) || has(kNotFinite), has(kNotFinite)};
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  return step(optimizer, [](torch::optim::Optimizer& one) { one.step(); });
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, const std::function<void(torch::optim::Optimizer&)>& take) {
  TORCH_CHECK_VALUE(take, "GradScaler: expected a function that takes the step, got an empty one");
  if (!options_.enabled) {
    take(optimizer);
    return true;
  }
  TORCH_CHECK(progress_[&optimizer].stage != Stage::kStepped,
              "GradScaler: step() has been called for this optimizer already since the last update()");
  if (progress_[&optimizer].stage == Stage::kReady) unscale_(optimizer);
  const bool has_gradients = progress_[&optimizer].has_gradients;
  if (!has_gradients) progress_.erase(&optimizer);
  TORCH_CHECK(has_gradients,
              "GradScaler: no parameter of this optimizer has a gradient; call backward() before step()");
  Progress& progress = progress_[&optimizer];
  progress.stage = Stage::kStepping;
  if (!progress.skip) take(optimizer);
  progress.stage = Stage::kStepped;
  return !progress.skip;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  bool checked = false;
  bool skipped = false;
  bool failed = false;
  for (const auto& [optimizer, progress] : progress_) {
    checked = checked || progress.has_gradients;
    skipped = skipped || progress.skip;
    failed = failed || progress.stage == Stage::kStepping;
  }
  TORCH_CHECK(checked, "GradScaler: update() before step(): no gradients have been looked at since the last update()");
  if (failed && !skipped) return progress_.clear();
  const bool was_large = get_scale() >= 1;
  at::_amp_update_scale_(scale_, growth_tracker_, torch::full({}, skipped ? 1 : 0, torch::kFloat),
                         options_.growth_factor, options_.backoff_factor, options_.growth_interval);
  progress_.clear();
  if (was_large && get_scale() < 1) {
    log::warning(
        fmt::format("GradScaler: the scale has fallen to {}: gradients are not finite at any scale, so the "
                    "loss or the model seems to be wrong; FiniteCheck tells where",
                    get_scale()));
  }
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  TORCH_CHECK_VALUE(new_scale > 0, "GradScaler: the scale must be positive, got ", new_scale);
  scale_.fill_(new_scale);
  progress_.clear();
}

double GradScaler::get_scale() const {
  return options_.enabled ? scale_.item<double>() : 1;
}

std::map<std::string, double> GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", static_cast<double>(options_.growth_interval)},
          {"_growth_tracker", static_cast<double>(growth_tracker_.item<std::int64_t>())}};
}

void GradScaler::load_state_dict(const std::map<std::string, double>& state) {
  if (!options_.enabled) return;
  for (const auto& [name, value] : state_dict()) {
    TORCH_CHECK_VALUE(state.contains(name), "GradScaler: '", name, "' is missing in the saved state",
                      state.empty() ? ", which is empty, as that of a scaler that is not enabled" : "");
  }
  options_.growth_factor = state.at("growth_factor");
  options_.backoff_factor = state.at("backoff_factor");
  options_.growth_interval = static_cast<std::int64_t>(state.at("growth_interval"));
  scale_.fill_(state.at("scale"));
  growth_tracker_.fill_(state.at("_growth_tracker"));
}

}  // namespace lockstep
