#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "lockstep/base/log.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/one_cycle_lr.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {
namespace {

using Schedule = std::shared_ptr<optim::LRScheduler>;

// `length`: epochs or steps of the whole training without the warm-up.
Schedule main_schedule(const TrainCommandOptions& o, torch::optim::Optimizer& optimizer, std::int64_t length) {
  length = std::max<std::int64_t>(1, length);
  if (o.schedule == "step") return std::make_shared<optim::StepLR>(optimizer, o.step_size, o.gamma);
  if (o.schedule == "multistep") return std::make_shared<optim::MultiStepLR>(optimizer, o.milestones, o.gamma);
  if (o.schedule == "exponential") return std::make_shared<optim::ExponentialLR>(optimizer, o.gamma);
  if (o.schedule == "polynomial") return std::make_shared<optim::PolynomialLR>(optimizer, length, o.power);
  if (o.schedule == "cosine") return std::make_shared<optim::CosineAnnealingLR>(optimizer, length, o.eta_min);
  if (o.schedule == "none") return std::make_shared<optim::ConstantLR>(optimizer, 1.0);
  refuse_name("schedule.name", o.schedule);
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainCommandOptions& o,
                                                        const std::vector<torch::Tensor>& parameters) {
  using namespace torch::optim;
  if (o.optimizer == "sgd") {
    return std::make_unique<SGD>(
        parameters, SGDOptions(o.lr).momentum(o.momentum).nesterov(o.nesterov).weight_decay(o.weight_decay));
  }
  const std::tuple<double, double> betas(o.betas.at(0), o.betas.at(1));
  if (o.optimizer == "adam") {
    return std::make_unique<Adam>(parameters, AdamOptions(o.lr).betas(betas).eps(o.eps).weight_decay(o.weight_decay));
  }
  if (o.optimizer == "adamw") {
    return std::make_unique<AdamW>(parameters, AdamWOptions(o.lr).betas(betas).eps(o.eps).weight_decay(o.weight_decay));
  }
  if (o.optimizer == "rmsprop") {
    return std::make_unique<RMSprop>(
        parameters, RMSpropOptions(o.lr).alpha(o.alpha).eps(o.eps).momentum(o.momentum).weight_decay(o.weight_decay));
  }
  if (o.optimizer == "adagrad") {
    return std::make_unique<Adagrad>(parameters, AdagradOptions(o.lr).eps(o.eps).weight_decay(o.weight_decay));
  }
  refuse_name("optimizer.name", o.optimizer);
}

std::int64_t state_factor(const TrainCommandOptions& o) {
  if (o.optimizer == "sgd") return o.momentum > 0 ? 1 : 0;
  if (o.optimizer == "adam" || o.optimizer == "adamw") return 2;
  if (o.optimizer == "rmsprop") return o.momentum > 0 ? 2 : 1;
  if (o.optimizer == "adagrad") return 1;
  refuse_name("optimizer.name", o.optimizer);
}

Schedule make_schedule(const TrainCommandOptions& o, torch::optim::Optimizer& optimizer, std::int64_t steps) {
  if (o.schedule == "one_cycle") {
    return std::make_shared<optim::OneCycleLR>(
        optimizer, optim::OneCycleLROptions{.max_lr = {o.lr},
                                            .total_steps = std::max<std::int64_t>(1, steps * o.epochs),
                                            .cycle_momentum = o.cycle_momentum && o.optimizer != "adagrad"});
  }
  const std::int64_t length = o.interval == Interval::kStep ? steps * o.epochs : o.epochs;
  if (o.warmup == 0) return o.schedule == "none" ? nullptr : main_schedule(o, optimizer, length);
  if (o.warmup >= length && get_rank() == 0) {
    log::warning(
        fmt::format("schedule.warmup: {} is as long as the training, {}: the rate rises to the end", o.warmup, length));
  }
  const auto warmup = std::make_shared<optim::LinearLR>(
      optimizer, optim::LinearLROptions{.start_factor = o.warmup_factor, .total_iters = o.warmup});
  return std::make_shared<optim::SequentialLR>(
      optimizer, std::vector<Schedule>{warmup, main_schedule(o, optimizer, length - o.warmup)},
      std::vector<std::int64_t>{o.warmup});
}

}  // namespace lockstep::trainer_detail
