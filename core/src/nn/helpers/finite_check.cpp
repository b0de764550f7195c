#include "lockstep/nn/finite_check.h"

#include <c10/core/Event.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/arithmetic.h"
#include "c10d/backend/staging.h"
#include "c10d/streams.h"
#include "lockstep/base/log.h"
#include "lockstep/base/shown_model.h"
#include "nn/all_ranks.h"
#include "nn/ddp/gradient_evidence.h"
#include "nn/ddp/module_state.h"
#include "nn/helpers/named_gradients.h"
#include "nn/helpers/replica_hash.h"

namespace lockstep {
namespace nn_detail {

// Numbers of a device that the program reads later, when the device has long been done with them.
class LateNumbers {
 public:
  // Enqueues the copy of `numbers`, [n] of double on a device, behind what the current stream has.
  explicit LateNumbers(const torch::Tensor& numbers)
      : host_(make_host_memory(numbers)), copied_(numbers.device().type()) {
    host_.copy_(numbers, /*non_blocking=*/true);
    copied_.record(current_stream(numbers.device()));
  }
  // Waits until the copy is done.
  std::vector<double> read() {
    if (!copied_.query()) copied_.synchronize();
    const auto* const values = host_.const_data_ptr<double>();
    return {values, values + host_.numel()};
  }

 private:
  torch::Tensor host_;
  c10::Event copied_;
};

}  // namespace nn_detail

namespace {

// What a rank sends in place of its loss, which is finite: it has found something else that is not.
constexpr double kFound = std::numeric_limits<double>::max();

constexpr const char* kWhenItDiverges =
    ". A smaller learning rate or clipping helps where a training diverges; policy kSkip leaves out single steps";

// Those with floating-point values: running statistics, masks, tables.
std::vector<NamedParameter> float_buffers(const torch::nn::Module& module) {
  std::vector<NamedParameter> result;
  for (const auto& item : with_present_tensors(module).named_buffers()) {
    const torch::Tensor& buffer = item.value();
    if (!buffer.defined() || buffer.layout() != torch::kStrided || !buffer.is_floating_point()) continue;
    result.push_back({item.key(), buffer});
  }
  return result;
}

std::vector<NamedParameter> parameters_and_buffers(const torch::nn::Module& module) {
  auto result = nn_detail::distinct_parameters(module);
  for (NamedParameter& buffer : float_buffers(module)) result.push_back(std::move(buffer));
  return result;
}

void add(std::string& problem, const std::string& text) {
  problem += (problem.empty() ? "" : "; ") + text;
}

// `losses`: by rank. `is`: "is", or "was" with `when` in front.
void add_bad_losses(std::string& problem, const std::vector<double>& losses, const std::string& when, const char* is) {
  for (std::size_t rank = 0; rank < losses.size(); ++rank) {
    if (std::isfinite(losses[rank])) continue;
    const double shown = std::isnan(losses[rank]) ? std::fabs(losses[rank]) : losses[rank];  // no "-nan"
    add(problem, fmt::format("{}the loss of rank {} {} {}", when, rank, is, shown));
  }
}

std::vector<double> column(const std::vector<std::vector<double>>& rows, std::size_t index) {
  std::vector<double> values;
  values.reserve(rows.size());
  for (const std::vector<double>& row : rows) values.push_back(row[index]);
  return values;
}

void check_is_one_number(const torch::Tensor& loss) {
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "FiniteCheck: expected a loss of one number, got ",
                    loss.defined() ? c10::str(loss.sizes()) : "an undefined tensor");
}

}  // namespace

FiniteCheck::FiniteCheck(const torch::nn::Module& module, const FiniteCheckOptions& options)
    : module_(module), options_(options) {
  TORCH_CHECK_VALUE(options_.max_consecutive_skips >= 0,
                    "FiniteCheck: max_consecutive_skips must not be negative, got ", options_.max_consecutive_skips);
  TORCH_CHECK_VALUE(options_.checks_per_sweep >= 0, "FiniteCheck: checks_per_sweep must not be negative, got ",
                    options_.checks_per_sweep);
  TORCH_CHECK_VALUE(options_.checks_per_sweep == 0 || options_.policy == NonFinitePolicy::kError,
                    "FiniteCheck: checks_per_sweep finds a gradient after its step, which cannot be skipped then; "
                    "kSkip needs checks_per_sweep = 0");
  TORCH_CHECK_VALUE(options_.compare_every >= 0, "FiniteCheck: compare_every must not be negative, got ",
                    options_.compare_every);
  if (nn_detail::has_other_ranks(options_.group)) evidence_ = nn_detail::want_evidence();
  ends_of_checks_ = {nn_detail::forget_evidence_before(nn_detail::next_moment())};
  note_infinite();
  keep_buffers();
}

std::vector<NamedParameter> FiniteCheck::compared() const {
  std::vector<NamedParameter> tensors = nn_detail::distinct_parameters(module_);
  if (options_.compare_buffers) {
    for (const auto& item : module_.named_buffers()) tensors.push_back({item.key(), item.value()});
  }
  if (options_.ignored_parameters.empty()) return tensors;
  const std::set<std::string> ignored = nn_detail::names_to_ignore(module_, options_.ignored_parameters);
  std::erase_if(tensors, [&](const NamedParameter& tensor) { return ignored.contains(tensor.name); });
  return tensors;
}

std::vector<double> FiniteCheck::own_hashes(bool compares) const {
  if (!compares || options_.compare_every == 0 || !nn_detail::has_other_ranks(options_.group)) return {};
  return nn_detail::hashes_of(compared());
}

void FiniteCheck::refuse_drift(const std::vector<double>& by_rank, const std::vector<double>& hashes) {
  if (hashes.empty()) return;
  const std::int64_t before = std::exchange(equal_at_, step_);
  if (nn_detail::who_differs(by_rank).empty()) return;
  const auto rows = nn_detail::rows_of_all_ranks(hashes, options_.group);
  const std::vector<NamedParameter> tensors = compared();
  std::string first;
  std::size_t others = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string who = nn_detail::who_differs(column(rows, i));
    if (who.empty()) continue;
    if (!first.empty()) ++others;
    if (first.empty()) first = fmt::format("'{}' {}", tensors[i].name, who);
  }
  TORCH_CHECK(false, "step ", step_, ": expected the same parameters on all ranks, found that ", first,
              others > 0 ? fmt::format(", and {} more differ", others) : std::string(),
              before < 0 ? std::string() : fmt::format("; in step {} all were the same", before),
              ". A rank has changed its parameters by itself (a step or a write that the others did not make, other "
              "random numbers, a fault of its memory): go back to an earlier checkpoint, or set compare_every to 0 if "
              "the ranks differ on purpose");
}

void FiniteCheck::set_step(std::int64_t step, std::int64_t skipped_in_a_row) {
  step_ = step;
  skipped_in_a_row_ = skipped_in_a_row;
  late_.reset();
  ends_of_checks_ = {nn_detail::forget_evidence_before(nn_detail::next_moment())};
  note_infinite();  // a checkpoint has been read since the constructor
  keep_buffers();
}

void FiniteCheck::keep_buffers() {
  if (options_.policy != NonFinitePolicy::kSkip) return;
  const torch::NoGradGuard no_grad;
  std::vector<NamedParameter> buffers = float_buffers(module_);
  std::set<std::string> names;
  for (const NamedParameter& buffer : buffers) names.insert(buffer.name);
  std::erase_if(buffers, [&](const NamedParameter& buffer) { return infinite_.contains(buffer.name); });
  // All at once, as nearly always: on a GPU each question waits for the device.
  if (!nn_detail::have_finite_sum(nn_detail::without_names(buffers)))
    std::erase_if(buffers, [](const NamedParameter& buffer) { return !nn_detail::have_finite_sum({buffer.tensor}); });
  for (const NamedParameter& buffer : buffers) {
    torch::Tensor& kept = kept_buffers_[buffer.name];
    if (kept.defined() && kept.sizes() == buffer.tensor.sizes() && kept.options().type_equal(buffer.tensor.options())) {
      kept.copy_(buffer.tensor);
    } else {
      kept = buffer.tensor.detach().clone();
    }
  }
  std::erase_if(kept_buffers_, [&](const auto& kept) { return !names.contains(kept.first); });
}

void FiniteCheck::restore_buffers() {
  const torch::NoGradGuard no_grad;
  std::vector<NamedParameter> buffers = float_buffers(module_);
  std::erase_if(buffers, [&](const NamedParameter& buffer) { return !kept_buffers_.contains(buffer.name); });
  if (nn_detail::have_finite_sum(nn_detail::without_names(buffers))) return;
  for (NamedParameter& buffer : buffers) {
    const torch::Tensor& kept = kept_buffers_.at(buffer.name);
    if (kept.sizes() == buffer.tensor.sizes()) buffer.tensor.detach().copy_(kept);
  }
}

bool FiniteCheck::check(const torch::Tensor& loss) {
  const torch::NoGradGuard no_grad;
  check_is_one_number(loss);
  if (options_.checks_per_sweep == 0) return decide(loss.item<double>(), bad_gradients());
  const std::vector<torch::Tensor> part = next_part();
  if (!loss.is_cpu()) return decide(0, "", read_later(loss, part));
  return decide(loss.item<double>(), nn_detail::have_finite_sum(part) ? "" : bad_parameters());
}

struct FiniteCheck::Late {
  nn_detail::LateNumbers numbers;  // the loss, and a sum of the part
  std::int64_t step;
};

// The program runs ahead of the GPU by one step. What it asks of the step before costs no wait.
std::shared_ptr<FiniteCheck::Late> FiniteCheck::read_later(const torch::Tensor& loss,
                                                           const std::vector<torch::Tensor>& part) const {
  const auto as_number = [&](const torch::Tensor& tensor) {
    return tensor.detach().to(loss.device(), torch::kDouble).reshape({1});
  };
  const torch::Tensor sum = nn_detail::sum_of(part);
  const torch::Tensor numbers =
      torch::cat({as_number(loss), sum.defined() ? as_number(sum) : torch::zeros_like(as_number(loss))});
  return std::make_shared<Late>(Late{nn_detail::LateNumbers(numbers), step_});
}

FiniteCheck::LateLoss FiniteCheck::take_late(std::shared_ptr<Late> next) {
  const auto late = std::exchange(late_, std::move(next));
  if (!late) return {0, true, step_ - 1};
  const std::vector<double> numbers = late->numbers.read();
  return {numbers[0], std::isfinite(numbers[1]), late->step};
}

bool FiniteCheck::check(const torch::Tensor& loss, double gradient_norm) {
  const torch::NoGradGuard no_grad;
  check_is_one_number(loss);
  return decide(loss.item<double>(), std::isfinite(gradient_norm) ? "" : bad_gradients());
}

void FiniteCheck::note_step(bool taken) {
  TORCH_CHECK_VALUE(options_.policy == NonFinitePolicy::kSkip,
                    "FiniteCheck: note_step() gives buffers their values back, which kSkip alone keeps");
  end_check();
  if (taken) return keep_buffers();
  ++skipped_;
  restore_buffers();
}

void FiniteCheck::check_parameters() {
  const torch::NoGradGuard no_grad;
  const std::string found = bad_parameters();
  const LateLoss late = take_late(nullptr);
  const std::vector<double> hashes = own_hashes(/*compares=*/true);
  const auto all = nn_detail::rows_of_all_ranks(
      {found.empty() ? 0.0 : 1.0, late.loss, hashes.empty() ? 0.0 : nn_detail::hash_of(hashes)}, options_.group);
  refuse_drift(column(all, 2), hashes);
  const std::vector<double> finders = column(all, 0);
  std::string problem;
  add_bad_losses(problem, column(all, 1), fmt::format("in step {} ", late.step), "was");
  if (std::find(finders.begin(), finders.end(), 1.0) != finders.end())
    add(problem, found.empty() ? "parameters of other ranks are not finite" : found);
  if (!problem.empty()) add_bad_senders(problem, column(all, 1));
  TORCH_CHECK(problem.empty(), "rank ", get_rank(options_.group), ", before step ", step_, ": ", problem,
              kWhenItDiverges);
}

void FiniteCheck::note_infinite() {
  const torch::NoGradGuard no_grad;
  infinite_.clear();
  const auto parameters = parameters_and_buffers(module_);
  if (nn_detail::have_finite_sum(nn_detail::without_names(parameters))) return;
  for (const NamedParameter& parameter : parameters) {
    if (nn_detail::have_finite_sum({parameter.tensor}) || parameter.tensor.isnan().any().item<bool>()) continue;
    if (parameter.tensor.isinf().any().item<bool>()) infinite_.insert(parameter.name);
  }
}

std::vector<NamedParameter> FiniteCheck::watched() const {
  auto parameters = parameters_and_buffers(module_);
  std::erase_if(parameters, [&](const NamedParameter& parameter) { return infinite_.contains(parameter.name); });
  return parameters;
}

// The parameters are asked for at the beginning of a sweep, because their names take time.
std::vector<torch::Tensor> FiniteCheck::next_part() {
  if (next_ == swept_.size()) {
    swept_ = nn_detail::without_names(watched());
    std::int64_t elements = 0;
    for (const torch::Tensor& parameter : swept_) elements += parameter.numel();
    part_ = ceil_divide(elements, options_.checks_per_sweep);
    next_ = 0;
  }
  std::vector<torch::Tensor> part;
  for (std::int64_t left = part_; left > 0 && next_ < swept_.size();) {
    const torch::Tensor& parameter = swept_[next_];
    next_element_ = std::min(next_element_, parameter.numel());  // it may have become smaller
    const std::int64_t here = std::min(left, parameter.numel() - next_element_);
    // A tensor that is not dense is read as a whole, when its last element is due.
    if (parameter.layout() == torch::kStrided && parameter.is_non_overlapping_and_dense()) {
      part.push_back(parameter.as_strided({parameter.numel()}, {1}).narrow(0, next_element_, here));
    } else if (next_element_ + here == parameter.numel()) {
      part.push_back(parameter);
    }
    left -= here;
    next_element_ += here;
    if (next_element_ < parameter.numel()) continue;
    next_element_ = 0;
    ++next_;
  }
  return part;
}

// A sweep finds a bad parameter up to `checks_per_sweep` checks after its gradient. Where gradients are read, what came
// before the last check has nothing to do with a bad gradient.
void FiniteCheck::end_check() {
  ++step_;
  if (!evidence_) return;
  ends_of_checks_.push_back(nn_detail::next_moment());
  if (ends_of_checks_.size() > static_cast<std::size_t>(options_.checks_per_sweep) + 1) ends_of_checks_.pop_front();
  nn_detail::forget_evidence_before(ends_of_checks_.front());
}

// Of several ranks, the ones that were first. A rank whose loss is bad in the same step is named already.
void FiniteCheck::add_bad_senders(std::string& problem, const std::vector<double>& losses) const {
  constexpr std::size_t kShown = 4;
  if (!nn_detail::has_other_ranks(options_.group)) return;
  const std::vector<NamedParameter> parameters = nn_detail::distinct_parameters(module_);
  const nn_detail::Evidence own = nn_detail::find_evidence(parameters, ends_of_checks_.front());
  // Steps ago, which are the same on all ranks, since all ranks make each check; -1: there is no evidence.
  const auto later = std::count_if(ends_of_checks_.begin(), ends_of_checks_.end(),
                                   [&](std::uint64_t end) { return end > own.moment; });
  const auto rows = nn_detail::rows_of_all_ranks({own.moment == 0 ? -1 : static_cast<double>(later),
                                                  static_cast<double>(own.parameter), static_cast<double>(own.pass)},
                                                 options_.group);
  std::size_t shown = 0;
  for (const std::size_t rank : nn_detail::first_ranks(rows)) {
    const auto ago = static_cast<std::int64_t>(rows[rank][0]);
    const auto parameter = static_cast<std::size_t>(rows[rank][1]);
    if ((ago == 0 && !std::isfinite(losses[rank])) || parameter >= parameters.size()) continue;
    if (++shown > kShown) break;
    const std::string when = ago > 0 ? fmt::format(" in step {}", step_ - ago) : "";
    add(problem, fmt::format("rank {} has sent a gradient of '{}' that was not finite{}", rank,
                             parameters[parameter].name, when));
  }
}

std::string FiniteCheck::bad_gradients() const {
  const auto gradients = nn_detail::gradient_values(nn_detail::distinct_parameters(module_));
  if (nn_detail::have_finite_sum(nn_detail::without_names(gradients))) return "";
  const std::string names = nn_detail::names_of_nonfinite(gradients);
  return names.empty() ? "" : fmt::format("the gradient of {} is not finite", names);
}

std::string FiniteCheck::bad_parameters() const {
  const auto parameters = watched();
  if (nn_detail::have_finite_sum(nn_detail::without_names(parameters))) return "";
  const std::string names = nn_detail::names_of_nonfinite(parameters);
  return names.empty() ? "" : fmt::format("{} is not finite since an earlier step", names);
}

bool FiniteCheck::decide(double own, std::string found, std::shared_ptr<Late> next) {
  const LateLoss late = take_late(std::move(next));
  if (!late.is_part_finite && found.empty()) found = bad_parameters();
  const double sent = std::isfinite(own) && !found.empty() ? kFound : own;
  const std::vector<double> hashes = own_hashes(options_.compare_every > 0 && step_ % options_.compare_every == 0);
  const auto rows = nn_detail::rows_of_all_ranks({sent, late.loss, hashes.empty() ? 0.0 : nn_detail::hash_of(hashes)},
                                                 options_.group);
  refuse_drift(column(rows, 2), hashes);
  const std::vector<double> all = column(rows, 0);
  std::string problem;
  add_bad_losses(problem, all, "", "is");
  const bool any_found = std::find(all.begin(), all.end(), kFound) != all.end();
  const bool sweeps = options_.checks_per_sweep > 0;
  if (sweeps && found.empty() && !problem.empty()) {  // an earlier step may be the cause of this loss
    found = bad_parameters();
    if (found.empty()) found = bad_gradients();
  }
  add_bad_losses(problem, column(rows, 1), fmt::format("in step {} ", late.step), "was");
  if (!found.empty()) {
    add(problem, found);
  } else if (any_found) {
    add(problem, sweeps ? "parameters of other ranks are not finite" : "gradients of other ranks are not finite");
  }
  if (!problem.empty()) add_bad_senders(problem, all);  // all ranks know of a problem, though in other words
  const std::int64_t step = step_;
  end_check();
  if (problem.empty()) {
    skipped_in_a_row_ = 0;
    keep_buffers();
    return true;
  }
  const int rank = get_rank(options_.group);
  TORCH_CHECK(options_.policy == NonFinitePolicy::kSkip, "rank ", rank, ", step ", step, ": ", problem,
              kWhenItDiverges);
  // The others have this rank's buffers, or it has theirs. All ranks know of the problem, and do the same.
  restore_buffers();
  ++skipped_;
  TORCH_CHECK(++skipped_in_a_row_ <= options_.max_consecutive_skips, "rank ", rank, ", step ", step, ": ", problem,
              "; this is step ", skipped_in_a_row_, " in a row that is not finite, and max_consecutive_skips is ",
              options_.max_consecutive_skips);
  if (rank == 0) log::warning(fmt::format("step {} is skipped: {}", step, problem));
  return false;
}

}  // namespace lockstep
