// Code of docs/comm_hooks.md, docs/training_helpers.md and of the headers that they are about, as it stands there.
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/nn/captured_step.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "lockstep/nn/fast_batch_norm.h"
#include "lockstep/nn/fast_convolution.h"
#include "lockstep/nn/finite_check.h"
#include "lockstep/nn/fused_step.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/gradient_accumulation.h"
#include "lockstep/nn/memory_format.h"
#include "lockstep/nn/mixed_precision.h"
#include "lockstep/nn/power_sgd.h"
#include "net.h"

namespace lockstep {
namespace {

using Ddp = DistributedDataParallel<Net>;
using data::DataLoader;

void evaluate(Net& net) {
  net->eval();
}

[[maybe_unused]] void hooks(Ddp& ddp) {
  ddp.register_comm_hook(make_compress_hook(torch::kBFloat16));
  ddp.register_comm_hook(make_compress_hook(torch::kHalf, {.error_feedback = true}));
  ddp.register_comm_hook(make_power_sgd_hook({.matrix_approximation_rank = 2, .start_power_sgd_iter = 500}));
  ddp.register_comm_hook(make_compress_wrapper(torch::kBFloat16, make_power_sgd_hook()));
  ddp.register_comm_hook(make_noop_hook());
  ddp.register_comm_hook(nullptr);
}

[[maybe_unused]] void hook_state(Ddp& ddp, const std::string& path) {
  auto hook = make_power_sgd_hook({.matrix_approximation_rank = 2});
  if (std::filesystem::exists(path)) hook->load(checkpoint::read_tensor_file(path).tensors);
  ddp.register_comm_hook(hook);
  checkpoint::write_tensor_file(path, {.tensors = hook->tensors(), .metadata = {}});
}

struct ClippedHook final : CommHook {
  std::function<void()> run(GradBucket& bucket) override {
    bucket.buffer().clamp_(-1, 1);
    auto work = all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG, .group = bucket.group()});
    return [work] { work->wait(); };
  }
};

[[maybe_unused]] void micro_batches(Ddp& ddp, torch::optim::SGD& optimizer, Loss loss_of,
                                    const std::vector<torch::Tensor>& inputs,
                                    const std::vector<torch::Tensor>& targets) {
  optimizer.zero_grad();
  torch::Tensor loss =
      accumulate_gradients(ddp, 4, [&](int part) { return loss_of(ddp->forward(inputs[part]), targets[part]); });
  optimizer.step();
}

[[maybe_unused]] void sample_mean(Ddp& ddp, const torch::Tensor& images, const torch::Tensor& labels) {
  const double factor = sample_mean_factor(labels.size(0));
  (torch::nll_loss(ddp->forward(images), labels, {}, at::Reduction::Sum) * factor).backward();
}

[[maybe_unused]] void clipping(Net& net, torch::optim::SGD& optimizer, torch::Tensor& loss) {
  loss.backward();
  const double norm = clip_grad_norm_(*net, 1.0, {.error_if_nonfinite = true});
  optimizer.step();
  (void)norm;
}

[[maybe_unused]] void fast_batch_norm() {
  use_fast_batch_norm();
}

[[maybe_unused]] void fast_convolution() {
  use_fast_convolution();
}

[[maybe_unused]] void fused(torch::optim::SGD& optimizer, torch::Tensor& loss, GradScaler& scaler) {
  loss.backward();
  fused_step(optimizer);

  scaler.step(optimizer, fused_step);
}

[[maybe_unused]] void captured(Ddp& ddp, torch::optim::SGD& optimizer, DataLoader& loader, torch::Device device) {
  const torch::Tensor images = torch::empty({64, 3, 224, 224}, device);
  const torch::Tensor labels = torch::empty({64}, torch::dtype(torch::kLong).device(device));
  torch::Tensor loss;
  CapturedStep step([&] {
    optimizer.zero_grad();
    loss = torch::cross_entropy_loss(ddp.forward(images), labels);
    loss.backward();
  });
  for (auto& batch : loader) {
    images.copy_(batch.data, /*non_blocking=*/true);
    labels.copy_(batch.target, /*non_blocking=*/true);
    step();
    fused_step(optimizer);
  }
}

[[maybe_unused]] void finite(Net& net, Ddp& ddp, torch::optim::SGD& optimizer, DataLoader& loader) {
  FiniteCheck finite(*net, {.policy = NonFinitePolicy::kSkip});
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    torch::Tensor loss = torch::nll_loss(ddp->forward(images), labels);
    loss.backward();
    if (finite.check(loss)) optimizer.step();
  }
}

[[maybe_unused]] void compared(Net& net) {
  FiniteCheck finite(*net, {.compare_every = 100});
}

[[maybe_unused]] void finite_and_scaled(FiniteCheck& finite, torch::optim::SGD& optimizer, GradScaler& scaler) {
  finite.note_step(scaler.step(optimizer));
}

[[maybe_unused]] void moving_average(Net& net, Ddp& ddp, torch::optim::SGD& optimizer, DataLoader& loader) {
  ExponentialMovingAverage ema(*net, {.decay = 0.999});
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    torch::nll_loss(ddp->forward(images), labels).backward();
    optimizer.step();
    ema.update();
  }
  {
    const auto guard = ema.swap_in();
    evaluate(net);
  }
}

[[maybe_unused]] void moving_average_after_join(ExponentialMovingAverage& ema) {
  const std::vector<std::int64_t> counts = all_gather_object(ema.updates());
  const auto most = std::max_element(counts.begin(), counts.end());
  std::map<std::string, torch::Tensor> averages = ema.tensors();  // on GPUs: .cpu() of each
  broadcast_object(averages, static_cast<int>(most - counts.begin()));
  ema.load(averages, *most);
}

[[maybe_unused]] torch::Tensor layout(Net& net, const torch::Tensor& images) {
  to_memory_format(*net, torch::MemoryFormat::ChannelsLast);
  DistributedDataParallel<Net> ddp(net);
  torch::Tensor scores = ddp->forward(to_memory_format(images, torch::MemoryFormat::ChannelsLast));
  return scores;
}

[[maybe_unused]] void autocast(Ddp& ddp, Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  torch::Tensor loss;
  {
    const Autocast autocast(torch::kCPU);
    loss = loss_of(ddp->forward(x), y);
  }
  loss.backward();
}

[[maybe_unused]] void master_weights(Net& net, DataLoader& loader) {
  net->to(torch::kBFloat16);
  DistributedDataParallel<Net> ddp(net);
  MasterWeights masters(*net);
  torch::optim::AdamW optimizer(masters.parameters(), 1e-3);
  for (auto& [images, labels] : loader) {
    net->zero_grad();
    torch::nll_loss(ddp->forward(images.to(torch::kBFloat16)), labels).backward();
    masters.step(optimizer);
  }
}

[[maybe_unused]] void loss_scaling(Net& net, Ddp& ddp, torch::optim::SGD& optimizer, DataLoader& loader) {
  GradScaler scaler;
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const Autocast autocast(torch::kCPU, torch::kHalf);
      loss = torch::nll_loss(ddp->forward(images).to(torch::kFloat), labels);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    clip_grad_norm_(*net, 1.0);
    scaler.step(optimizer);
    scaler.update();
  }
}

[[maybe_unused]] void scaler_state(GradScaler& scaler, checkpoint::Checkpoint& state) {
  for (const auto& [name, value] : scaler.state_dict()) state.set("scaler." + name, value);

  std::map<std::string, double> saved = scaler.state_dict();
  for (auto& [name, value] : saved) value = state.get_double("scaler." + name);
  scaler.load_state_dict(saved);
}

// --- Headers

[[maybe_unused]] void grad_scaler_header(Ddp& ddp, torch::optim::SGD& optimizer, MasterWeights& masters, Loss loss_of,
                                         const torch::Tensor& x, const torch::Tensor& y) {
  lockstep::GradScaler scaler;
  torch::Tensor loss;
  {
    const lockstep::Autocast autocast(torch::kCPU, torch::kHalf);
    loss = loss_of(ddp->forward(x), y);
  }
  scaler.scale(loss).backward();
  scaler.step(optimizer);
  scaler.update();

  masters.copy_gradients();
  scaler.step(optimizer);
  masters.copy_parameters();
  scaler.update();
}

[[maybe_unused]] void power_sgd_header(Ddp& ddp) {
  ddp.register_comm_hook(lockstep::make_power_sgd_hook({.matrix_approximation_rank = 2}));
}

[[maybe_unused]] void gradient_accumulation_header(Ddp& ddp, torch::optim::SGD& optimizer, Loss loss_of,
                                                   const std::vector<torch::Tensor>& inputs,
                                                   const std::vector<torch::Tensor>& targets,
                                                   const torch::Tensor& images, const torch::Tensor& labels) {
  optimizer.zero_grad();
  lockstep::accumulate_gradients(ddp, 4, [&](int part) { return loss_of(ddp->forward(inputs[part]), targets[part]); });
  optimizer.step();

  const double factor = lockstep::sample_mean_factor(labels.size(0));
  (torch::nll_loss(ddp->forward(images), labels, {}, at::Reduction::Sum) * factor).backward();
}

[[maybe_unused]] void clip_grad_header(Net& net, torch::optim::SGD& optimizer, torch::Tensor& loss) {
  loss.backward();
  const double norm = lockstep::clip_grad_norm_(*net, 1.0);
  optimizer.step();
  (void)norm;
}

[[maybe_unused]] void fused_step_header(torch::optim::SGD& optimizer, torch::Tensor& loss) {
  loss.backward();
  lockstep::fused_step(optimizer);
}

[[maybe_unused]] void captured_step_header(Ddp& ddp, torch::optim::SGD& optimizer, const data::Example& batch,
                                           torch::Tensor& images, torch::Tensor& labels, Loss loss_of) {
  lockstep::CapturedStep step([&] {
    optimizer.zero_grad();
    loss_of(ddp.forward(images), labels).backward();
  });
  images.copy_(batch.data);
  step();
  lockstep::fused_step(optimizer);
}

[[maybe_unused]] void finite_check_header(Net& net, torch::optim::SGD& optimizer, torch::Tensor& loss) {
  lockstep::FiniteCheck finite(*net, {.policy = lockstep::NonFinitePolicy::kSkip});
  loss.backward();
  if (finite.check(loss)) optimizer.step();
}

[[maybe_unused]] void moving_average_header(Net& net, torch::optim::SGD& optimizer) {
  lockstep::ExponentialMovingAverage ema(*net, {.decay = 0.999});
  optimizer.step();
  ema.update();
  {
    const auto guard = ema.swap_in();
    evaluate(net);
  }
}

[[maybe_unused]] void autocast_header(Ddp& ddp, Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  torch::Tensor loss;
  {
    const lockstep::Autocast autocast(torch::kCPU);
    loss = loss_of(ddp->forward(x), y);
  }
  loss.backward();
}

[[maybe_unused]] void master_weights_header(Net& net, Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  net->to(torch::kBFloat16);
  lockstep::DistributedDataParallel<Net> ddp(net);
  lockstep::MasterWeights masters(*net);
  torch::optim::AdamW optimizer(masters.parameters(), 1e-3);
  loss_of(ddp->forward(x), y).backward();
  masters.step(optimizer);
  net->zero_grad();
}

}  // namespace
}  // namespace lockstep
