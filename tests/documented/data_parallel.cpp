// Code of docs/data_parallel.md and of the headers of DataParallel, as it stands there.
#include "lockstep/nn/data_parallel.h"

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "lockstep/nn/scatter.h"
#include "net.h"

namespace lockstep {
namespace {

struct PlainImpl : torch::nn::Module {
  explicit PlainImpl(int width = 1) { line = register_module("line", torch::nn::Linear(1, width)); }
  torch::Tensor forward(const torch::Tensor& x) { return line(x); }
  torch::nn::Linear line{nullptr};
};
TORCH_MODULE(Plain);

struct MaskedImpl : torch::nn::Cloneable<MaskedImpl> {
  void reset() override {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) { return x * mask; }
};
TORCH_MODULE(Masked);

struct Batch {
  torch::Tensor images, labels;
};
auto fields(Batch& batch) {
  return std::tie(batch.images, batch.labels);
}

[[maybe_unused]] void wrapping() {
  Net net;
  DataParallel<Net> parallel(net, {.cpu_replicas = 2});
  torch::optim::SGD optimizer(parallel.parameters(), 0.01);
}

[[maybe_unused]] void step(DataParallel<Net>& parallel, torch::optim::SGD& optimizer, Loss loss_of,
                           const torch::Tensor& x, const torch::Tensor& y) {
  optimizer.zero_grad();
  torch::Tensor loss = loss_of(parallel.forward(x), y);
  loss.backward();
  optimizer.step();
}

[[maybe_unused]] void other_replicas(Net& net) {
  DataParallel<Net> on_gpus(net, {.device_ids = {{torch::kCUDA, 0}, {torch::kCUDA, 1}}});
  DataParallel made_by_us(Plain(8), {.cpu_replicas = 2}, [] { return Plain(8); });
}

[[maybe_unused]] torch::Tensor masked(DataParallel<Masked>& parallel, const torch::Tensor& x,
                                      const torch::Tensor& mask) {
  return parallel.forward(x, parallel::replicated(mask));
}

[[maybe_unused]] void in_headers(Loss loss_of, const torch::Tensor& x, const torch::Tensor& y) {
  Net net;
  lockstep::DataParallel<Net> parallel(net, {.cpu_replicas = 2});
  torch::optim::SGD optimizer(parallel.parameters(), 0.01);

  optimizer.zero_grad();
  loss_of(parallel.forward(x), y).backward();
  optimizer.step();
}

[[maybe_unused]] void in_headers_too(Net& net, const Batch& batch, const std::vector<torch::Device>& devices) {
  lockstep::DataParallel<Net> parallel(net, {.cpu_replicas = 2}, [] { return Net(); });
  std::vector<Batch> parts = lockstep::parallel::scatter(batch, devices);
  Batch whole = lockstep::parallel::gather(parts, devices.front());
}

}  // namespace
}  // namespace lockstep
