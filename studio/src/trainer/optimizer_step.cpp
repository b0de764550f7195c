#include "optimizer_step.h"

#include <limits>
#include <unordered_set>

#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/gradient_accumulation.h"
#include "lockstep/nn/mixed_precision.h"
#include "nn/helpers/named_gradients.h"

namespace lockstep::trainer_detail {
namespace {

// Reading all gradients in each step would cost some percent of it, a part of the parameters costs next to nothing.
// Where steps are skipped that would be too late, and clipping reads the gradients anyway.
constexpr std::int64_t kChecksPerSweep = 32;
constexpr std::int64_t kCompareEvery = 100;

FiniteCheckOptions check_options(const TrainerOptions& options) {
  FiniteCheckOptions check{.policy = *options.non_finite,
                           .compare_every = options.compare_every.value_or(options.comm_hook ? 0 : kCompareEvery),
                           .ignored_parameters = options.ddp.ignored_parameters};
  const bool sweeps = check.policy == NonFinitePolicy::kError && options.clip_grad_norm == 0;
  if (sweeps) check.checks_per_sweep = kChecksPerSweep;
  if (options.precision != TrainingPrecision::kFloat16) return check;
  // The scaler finds and skips the steps. The check gives the buffers back.
  check.policy = NonFinitePolicy::kSkip;
  check.checks_per_sweep = 0;
  return check;
}

// The gradients that the optimizer will use: those of other parameters do not count for the norm, and a GradScaler
// leaves them scaled.
std::vector<NamedParameter> gradients_of(const torch::nn::Module& model, const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> of_optimizer;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& tensor : group.params()) of_optimizer.insert(tensor.unsafeGetTensorImpl());
  }
  auto parameters = nn_detail::distinct_parameters(model);
  std::erase_if(parameters, [&](const NamedParameter& parameter) {
    return of_optimizer.count(parameter.tensor.unsafeGetTensorImpl()) == 0;
  });
  return nn_detail::gradient_values(parameters);
}

}  // namespace

OptimizerStep::OptimizerStep(std::shared_ptr<torch::nn::Module> model, torch::optim::Optimizer& optimizer,
                             const TrainerOptions& options, torch::Device device)
    : model_(std::move(model)), optimizer_(optimizer), options_(options), device_(device) {
  wrap(options.ddp);
  if (options.ema_decay > 0) averages_.emplace(*model_, ExponentialMovingAverageOptions{.decay = options.ema_decay});
  if (options.precision == TrainingPrecision::kFloat16) scaler_.emplace();
  if (options.non_finite) finite_.emplace(*model_, check_options(options));
}

StepOutput OptimizerStep::forward(Feed& feed) {
  std::optional<Autocast> autocast;
  if (options_.precision == TrainingPrecision::kBFloat16) autocast.emplace(device_.type(), torch::kBFloat16);
  if (options_.precision == TrainingPrecision::kFloat16) autocast.emplace(device_.type(), torch::kHalf);
  StepOutput output = feed.run({device_, options_.channels_last});
  TORCH_CHECK_VALUE(output.loss.defined() && output.loss.numel() == 1 && output.loss.is_floating_point(),
                    "Trainer: the step function must return a loss of one number (the mean over the batch), got ",
                    output.loss.defined() ? c10::str(output.loss.scalar_type(), output.loss.sizes())
                                          : std::string("an undefined tensor"));
  TORCH_CHECK_VALUE(output.samples >= 0,
                    "Trainer: this batch is no data::Example; the step function must set StepOutput::samples");
  return output;
}

void OptimizerStep::wrap(const DistributedDataParallelOptions& options) {
  ddp_.emplace(model_, options);
  if (options_.comm_hook) ddp_->register_comm_hook(options_.comm_hook);
}

void OptimizerStep::rebuild(std::int64_t step, std::int64_t skipped_in_a_row) {
  DistributedDataParallelOptions options = options_.ddp;
  options.init_sync = false;  // all ranks have the same values
  wrap(options);
  if (scaler_) scaler_->update(scaler_->get_scale());  // a step that has failed left it in the middle
  set_step(step, skipped_in_a_row);
}

StepReport OptimizerStep::run(Feed& feed, int parts) {
  optimizer_.zero_grad();
  model_->zero_grad();  // the optimizer may have a part of the parameters; the others' gradients would add up
  StepReport report = compute(feed, parts, parts, [&](int) {
    TORCH_CHECK(feed.next(), "Trainer: the loader has given fewer batches than its size()");
  });
  apply(report);
  return report;
}

StepReport OptimizerStep::compute(Feed& feed, int passes, double divisor, const std::function<void(int pass)>& take) {
  start_ = Clock::now();
  StepReport report;
  report.learning_rate = optimizer_.param_groups().at(0).options().get_lr();
  const double communicated_before = communicated();
  step_sum_ = torch::Tensor();
  const auto loss_of_pass = [&](int number) {
    const auto waiting = Clock::now();
    take(number);
    report.input_seconds += seconds_since(waiting);
    const auto pass = ddp_->operator->();  // it begins
    StepOutput output = forward(feed);
    step_samples_ = report.samples += output.samples;
    const torch::Tensor part = output.loss.detach().to(torch::kDouble).reshape({}) * output.samples;
    step_sum_ = step_sum_.defined() ? step_sum_ + part : part;
    const torch::Tensor loss = scaler_ ? scaler_->scale(output.loss.to(torch::kFloat)) : output.loss;
    return divisor == 1 ? loss : loss / divisor;
  };
  report.loss = accumulate_gradients(*ddp_, passes, loss_of_pass, {.mean = false});
  if (divisor != passes) report.loss = report.loss * (divisor / passes);  // the mean of this rank's
  if (scaler_) report.loss = report.loss / scaler_->get_scale();
  // A module with new parameters has a new reducer, which counts from 0.
  const double communicated_now = communicated();
  report.communication_seconds = communicated_now - (communicated_now < communicated_before ? 0 : communicated_before);
  may_step_ = clip_and_check(report);
  return report;
}

void OptimizerStep::apply(StepReport& report) {
  report.skipped = !take();
  if (!report.skipped) {  // else its loss may be NaN, and would make that of the epoch NaN
    loss_sum_ = loss_sum_.defined() ? loss_sum_ + step_sum_ : step_sum_;
    samples_ += report.samples;
  }
  report.seconds = seconds_since(start_);
}

// Returns whether the optimizer took its step.
bool OptimizerStep::take() {
  if (!may_step_) return false;
  const auto step = [this](torch::optim::Optimizer& optimizer) {
    if (options_.fused) {
      fused_step(optimizer);
    } else {
      optimizer.step();
    }
  };
  bool stepped = true;
  if (scaler_) {
    stepped = scaler_->step(optimizer_, step);
    scaler_->update();
    if (finite_) finite_->note_step(stepped);
  } else {
    step(optimizer_);
  }
  if (stepped && averages_) averages_->update();
  return stepped;
}

// The arithmetic of clip_grad_norm_, with the check between norm and clipping: it names gradients by their values.
bool OptimizerStep::clip_and_check(StepReport& report) {
  const bool checks = finite_ && !scaler_;
  if (scaler_) scaler_->unscale_(optimizer_);
  if (options_.clip_grad_norm == 0) return !checks || finite_->check(report.loss);
  const torch::NoGradGuard no_grad;
  const auto gradients = gradients_of(*model_, optimizer_);
  const torch::Tensor norm = nn_detail::total_norm(gradients, 2);
  report.gradient_norm = norm.defined() ? norm.item<double>() : 0;
  if (checks && !finite_->check(report.loss, report.gradient_norm)) return false;
  nn_detail::scale_to_norm(gradients, norm, options_.clip_grad_norm);
  return true;
}

double OptimizerStep::communicated() const {
  const auto times = ddp_->reducer().comm_time();
  return times ? times->total_exposed : std::numeric_limits<double>::quiet_NaN();
}

void OptimizerStep::set_step(std::int64_t step, std::int64_t skipped_in_a_row) {
  if (finite_) finite_->set_step(step, skipped_in_a_row);
}

void OptimizerStep::check_parameters() {
  if (finite_) finite_->check_parameters();  // a step may overflow with gradients that are finite
}

Average OptimizerStep::step_losses() const {
  Average losses;
  losses.add(step_sum_.item<double>(), static_cast<double>(step_samples_));
  return losses;
}

Average OptimizerStep::take_losses() {
  Average losses;
  if (loss_sum_.defined()) losses.add(loss_sum_.item<double>(), static_cast<double>(samples_));
  loss_sum_ = torch::Tensor();
  samples_ = 0;
  return losses;
}

}  // namespace lockstep::trainer_detail
