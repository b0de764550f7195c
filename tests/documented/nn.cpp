// Code of docs/ddp.md, docs/metrics_and_models.md and of the headers of nn, as it stands there.
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/mnist.h"
#include "lockstep/nn/average_gradients.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/metrics.h"
#include "lockstep/nn/models/mnist_net.h"
#include "lockstep/nn/models/resnet.h"
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

[[maybe_unused]] void join(DistributedDataParallel<Net>& ddp, torch::optim::SGD& optimizer, DataLoader& loader) {
  ddp.join([&] {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      torch::nll_loss(ddp->forward(images), labels).backward();
      optimizer.step();
    }
  });
}

[[maybe_unused]] void metrics(models::MnistNet& net, const std::string& folder) {
  const torch::NoGradGuard no_grad;
  net->eval();
  Average loss, accuracy;
  DataLoader loader(data::Mnist(folder, /*train=*/false), {.batch_size = 1000, .exact = true});
  for (auto& [images, labels] : loader) {
    const torch::Tensor output = net->forward(images);
    const auto count = static_cast<double>(labels.size(0));
    loss.add(torch::nll_loss(output, labels, {}, at::Reduction::Sum).item<double>(), count);
    accuracy.add(output.argmax(1).eq(labels).sum().item<double>(), count);
  }
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
  models::ResNet deeper = models::resnet34();
  models::ResNet small(models::ResNetOptions{.blocks = {1, 1, 1, 1}, .num_classes = 10, .in_channels = 1});
}

[[maybe_unused]] void weights_from_python(models::ResNet& model) {
  checkpoint::load_state_dict(*model, checkpoint::read_state_dict("resnet18.pt"));
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
      auto work = lockstep::all_reduce_async(bucket.buffer(), {.op = c10d::ReduceOp::AVG});
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

[[maybe_unused]] void metrics_header(int batches, double batch_loss_sum, double correct, double batch_size) {
  Average loss, accuracy;
  for (int batch = 0; batch < batches; ++batch) {
    loss.add(batch_loss_sum, batch_size);
    accuracy.add(correct, batch_size);
  }
  torch::Tensor sums = torch::stack({loss.packed(), accuracy.packed()});
  lockstep::all_reduce(sums);
  double mean_loss = Average(sums[0]).value();
  (void)mean_loss;
}

[[maybe_unused]] void resnet_header() {
  auto model = lockstep::models::resnet18({.num_classes = 10});
  auto logits = model->forward(torch::randn({8, 3, 224, 224}));
}

}  // namespace
}  // namespace lockstep
