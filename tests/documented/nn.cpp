// Code of docs/ddp.md, docs/metrics_and_models.md, docs/schedulers.md and of the headers of nn, as it stands there.
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/c10d/functional.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/datasets/mnist.h"
#include "lockstep/models/mnist_net.h"
#include "lockstep/models/mobilenet_v3.h"
#include "lockstep/models/resnet.h"
#include "lockstep/models/vision_transformer.h"
#include "lockstep/nn/activation_checkpoint.h"
#include "lockstep/nn/average_gradients.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "lockstep/nn/lr_schedules.h"
#include "lockstep/nn/metrics.h"
#include "lockstep/nn/one_cycle_lr.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "net.h"

namespace lockstep {
namespace {

using data::DataLoader;

[[maybe_unused]] void wrapping() {
  Net net;
  DistributedDataParallel<Net> ddp(net);
  DistributedDataParallel by_pointer(std::make_shared<NetImpl>());
  DistributedDataParallel by_value(NetImpl(), {.bucket_cap_mb = 10});
  torch::optim::SGD optimizer(ddp.parameters(), 0.01);
}

[[maybe_unused]] void step(DistributedDataParallel<Net>& ddp, torch::optim::SGD& optimizer, Loss loss_of,
                           const torch::Tensor& x, const torch::Tensor& y) {
  optimizer.zero_grad();
  torch::Tensor loss = loss_of(ddp->forward(x), y);
  loss.backward();
  optimizer.step();
}

[[maybe_unused]] void checkpointed(Net& net, Net& block, const torch::Tensor& x) {
  {
    const torch::Tensor y = activation_checkpoint([&](const torch::Tensor& value) { return net->forward(value); }, x);
  }
  {
    torch::Tensor y = lockstep::activation_checkpoint([&](const torch::Tensor& x) { return block->forward(x); }, x);
  }
  const auto segment = [&](const torch::Tensor& value) { return block->forward(value); };
  const torch::Tensor y = activation_checkpoint(segment, x);
}

[[maybe_unused]] void without_samples(DistributedDataParallel<Net>& ddp, torch::optim::SGD& optimizer, Loss loss_of,
                                      int samples, const torch::Tensor& x, const torch::Tensor& y) {
  if (samples > 0) {
    loss_of(ddp->forward(x), y).backward();
  } else {
    ddp.pass_without_input();
  }
  optimizer.step();
}

[[maybe_unused]] void through_a_collective(Loss loss_of, const torch::Tensor& features) {
  {
    const torch::Tensor all = functional::all_gather_into_tensor(features);  // [ranks * n, ...]
    loss_of(features, all).backward();
  }
  const torch::Tensor all = lockstep::functional::all_gather_into_tensor(features);  // [ranks * n, ...]
  loss_of(features, all).backward();
}

[[maybe_unused]] void no_sync(DistributedDataParallel<Net>& ddp, torch::optim::SGD& optimizer, Loss loss_of,
                              const std::vector<torch::Tensor>& inputs, const std::vector<torch::Tensor>& targets) {
  optimizer.zero_grad();
  {
    const auto guard = ddp.no_sync();
    for (int part = 0; part < 3; ++part) (loss_of(ddp->forward(inputs[part]), targets[part]) / 4).backward();
  }
  (loss_of(ddp->forward(inputs[3]), targets[3]) / 4).backward();
  optimizer.step();
}

[[maybe_unused]] void no_sync_in_a_loop(DistributedDataParallel<Net>& ddp, Loss loss_of, int parts,
                                        const std::vector<torch::Tensor>& inputs,
                                        const std::vector<torch::Tensor>& targets) {
  for (int part = 0; part < parts; ++part) {
    const auto guard = ddp.no_sync(part + 1 < parts);  // the last part sends
    (loss_of(ddp->forward(inputs[part]), targets[part]) / parts).backward();
  }
}

[[maybe_unused]] void communication(const DistributedDataParallel<Net>& ddp) {
  const std::optional<Reducer::CommTime> times = ddp.reducer().comm_time();
  if (times)
    std::printf("waited %.1f ms of %.1f ms\n", 1e3 * times->exposed_comm_time, 1e3 * times->backward_comm_time);
}

[[maybe_unused]] void join(DistributedDataParallel<Net>& ddp, torch::optim::SGD& optimizer, DataLoader& loader) {
  ddp.join([&] {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      torch::nll_loss(ddp->forward(images), labels).backward();
      optimizer.step();
    }
  });
}

[[maybe_unused]] void join_with_steps(DistributedDataParallel<Net>& ddp, DataLoader& loader) {
  ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(ddp.parameters(), torch::optim::AdamOptions(1e-3));
  ExponentialMovingAverage ema(*ddp.module());
  const auto step = [&] {
    optimizer.step();
    ema.update();
  };
  const auto loop = [&] {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      torch::nll_loss(ddp->forward(images), labels).backward();
      step();
    }
  };
  ddp.join(loop, {.after_shadow_pass = step});
}

[[maybe_unused]] void metrics(models::MnistNet& net, const std::string& folder) {
  const torch::NoGradGuard no_grad;
  net->eval();
  Average loss;
  Accuracy accuracy({1, 5});
  ConfusionMatrix confusion(10);
  DataLoader loader(data::Mnist(folder, /*train=*/false), {.batch_size = 1000, .exact = true});
  for (auto& [images, labels] : loader) {
    const torch::Tensor scores = net->forward(images);
    loss.add(torch::nll_loss(scores, labels, {}, at::Reduction::Sum).item<double>(),
             static_cast<double>(labels.size(0)));
    accuracy.update(scores, labels);
    confusion.update(scores, labels);
  }
  const double mean_loss = loss.compute();
  const std::vector<double> top_1_and_5 = accuracy.compute();
  const torch::Tensor matrix = confusion.compute();
  (void)mean_loss;
}

[[maybe_unused]] void packed_averages(const Average& loss, const Average& accuracy) {
  torch::Tensor sums = torch::stack({loss.packed(), accuracy.packed()});
  all_reduce(sums);
  const double mean_loss = Average(sums[0]).value();
  const double mean_accuracy = Average(sums[1]).value();
  (void)mean_loss, (void)mean_accuracy;
}

[[maybe_unused]] void mnist_net() {
  torch::manual_seed(1);
  models::MnistNet net;
}

[[maybe_unused]] void resnet() {
  models::ResNet model = models::resnet18({.num_classes = 10});
  torch::Tensor logits = model->forward(torch::randn({8, 3, 224, 224}));
  models::ResNet deeper = models::resnet50();
  models::ResNet cifar = models::resnet18({.num_classes = 10, .small_images = true});
  models::ResNet small(models::ResNetOptions{.blocks = {1, 1, 1, 1}, .num_classes = 10, .in_channels = 1});
}

[[maybe_unused]] void other_models() {
  models::MobileNetV3Small mobile = models::mobilenet_v3_small({.num_classes = 10});
  models::VisionTransformer base = models::vit_b_16();
  models::VisionTransformer tiny = models::vit_tiny({.image_size = 32, .patch_size = 4, .num_classes = 10});
}

[[maybe_unused]] void weights_from_python(models::ResNet& model) {
  checkpoint::load_state_dict(*model, checkpoint::read_state_dict("resnet18.pt"));
}

[[maybe_unused]] void step_lr(DistributedDataParallel<Net>& ddp, torch::optim::SGD& optimizer, DataLoader& loader) {
  optim::StepLR scheduler(optimizer, /*step_size=*/30, /*gamma=*/0.1);
  for (int epoch = 0; epoch < 90; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      torch::nll_loss(ddp->forward(images), labels).backward();
      optimizer.step();
    }
    scheduler.step();
  }
}

[[maybe_unused]] void warmup_and_cosine(torch::optim::SGD& optimizer, int epochs) {
  auto warmup =
      std::make_shared<optim::LinearLR>(optimizer, optim::LinearLROptions{.start_factor = 0.01, .total_iters = 5});
  auto cosine = std::make_shared<optim::CosineAnnealingLR>(optimizer, epochs - 5);
  optim::SequentialLR scheduler(optimizer, {warmup, cosine}, {5});
}

[[maybe_unused]] void one_cycle(DistributedDataParallel<Net>& ddp, torch::optim::SGD& optimizer, DataLoader& loader,
                                std::int64_t batches) {
  optim::OneCycleLR scheduler(optimizer, {.max_lr = {0.1}, .total_steps = batches});
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    torch::nll_loss(ddp->forward(images), labels).backward();
    optimizer.step();
    scheduler.step();
  }
}

[[maybe_unused]] void scheduler_state(torch::optim::SGD& optimizer, optim::StepLR& scheduler) {
  c10::impl::GenericDict run(c10::AnyType::get(), c10::AnyType::get());
  c10::IValue optimizer_state = checkpoint::state_dict(optimizer);
  scheduler.add_to_groups(optimizer_state);
  run.insert("optimizer", optimizer_state);
  run.insert("scheduler", scheduler.state_dict());
  checkpoint::write_torch_file("run.pt", run);

  const auto saved = checkpoint::read_torch_file("run.pt").toGenericDict();
  checkpoint::load_state_dict(optimizer, saved.at("optimizer"));
  scheduler.load_state_dict(saved.at("scheduler"));
}

// --- Headers

[[maybe_unused]] void average_gradients_header(const torch::Tensor& loss, Net& net, torch::optim::SGD& optimizer) {
  loss.backward();
  lockstep::average_gradients(net);
  optimizer.step();
}

[[maybe_unused]] void comm_hook_header(DistributedDataParallel<Net>& ddp) {
  struct ScaledHook final : lockstep::CommHook {
    std::function<void()> run(lockstep::GradBucket& bucket) override {
      auto work = lockstep::all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG, .group = bucket.group()});
      return [work, &bucket] {
        work->wait();
        bucket.buffer().mul_(0.5);
      };
    }
  };
  ddp.register_comm_hook(std::make_shared<ScaledHook>());
}

[[maybe_unused]] void ddp_header(Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  Net net;
  lockstep::DistributedDataParallel<Net> ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), 0.01);
  optimizer.zero_grad();
  loss_of(ddp->forward(x), y).backward();
  optimizer.step();
}

[[maybe_unused]] void metrics_header(Net& net, DataLoader& loader,
                                     double (*loss_sum_of)(const torch::Tensor&, const torch::Tensor&)) {
  Average loss;
  Accuracy accuracy({1, 5});
  ConfusionMatrix confusion(10);
  for (auto& [images, labels] : loader) {
    const torch::Tensor logits = net->forward(images);
    loss.add(loss_sum_of(logits, labels), static_cast<double>(labels.size(0)));
    accuracy.update(logits, labels);
    confusion.update(logits, labels);
  }
  const double mean_loss = loss.compute();
  const std::vector<double> top_1_and_5 = accuracy.compute();
  const torch::Tensor matrix = confusion.compute();
  (void)mean_loss;
}

[[maybe_unused]] void average_header(const Average& loss, const Average& accuracy) {
  torch::Tensor sums = torch::stack({loss.packed(), accuracy.packed()});
  lockstep::all_reduce(sums);
  double mean_loss = Average(sums[0]).value();
  (void)mean_loss;
}

[[maybe_unused]] void resnet_header() {
  auto model = lockstep::models::resnet18({.num_classes = 10});
  auto logits = model->forward(torch::randn({8, 3, 224, 224}));
}

[[maybe_unused]] void mobilenet_header() {
  auto model = lockstep::models::mobilenet_v3_small({.num_classes = 10});
  auto logits = model->forward(torch::randn({8, 3, 224, 224}));
}

[[maybe_unused]] void vision_transformer_header() {
  auto model = lockstep::models::vit_b_16();
  auto small = lockstep::models::vit_tiny({.image_size = 32, .patch_size = 4, .num_classes = 10});
  auto logits = small->forward(torch::randn({8, 3, 32, 32}));
}

[[maybe_unused]] void lr_scheduler_header(torch::optim::SGD& optimizer, int epochs, void (*train)(torch::optim::SGD&)) {
  auto warmup = std::make_shared<optim::LinearLR>(optimizer, optim::LinearLROptions{.start_factor = 0.1});
  auto cosine = std::make_shared<optim::CosineAnnealingLR>(optimizer, epochs - 5);
  optim::SequentialLR scheduler(optimizer, {warmup, cosine}, {5});
  for (int epoch = 0; epoch < epochs; ++epoch) {
    train(optimizer);
    scheduler.step();
  }
}

[[maybe_unused]] void lr_schedules_header(torch::optim::SGD& optimizer) {
  optim::StepLR scheduler(optimizer, /*step_size=*/30, /*gamma=*/0.1);
}

[[maybe_unused]] void one_cycle_header(torch::optim::SGD& optimizer, DataLoader& loader, int epochs,
                                       std::int64_t batches,
                                       void (*train)(const torch::Tensor&, const torch::Tensor&)) {
  optim::OneCycleLR scheduler(optimizer, {.max_lr = {0.1}, .total_steps = epochs * batches});
  for (auto& [images, labels] : loader) {
    train(images, labels);
    scheduler.step();
  }
}

}  // namespace
}  // namespace lockstep
