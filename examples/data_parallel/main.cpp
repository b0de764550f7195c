// DataParallel on the cores of one machine: how a batch is split over replicas, and a training run on two of them that
// ends with the weights of a run on one.
//
//   ./data_parallel
#include <lockstep/nn/data_parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

// Registers everything in reset(), so that clone() can make replicas.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(16, 64));
    last = register_module("last", torch::nn::Linear(64, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const std::scoped_lock lock(*mutex);  // replicas run at once, and share what clone() copies as a pointer
      rows->push_back(x.size(0));
    }
    return last(torch::relu(hidden(x)));
  }

  torch::nn::Linear hidden{nullptr}, last{nullptr};
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  std::shared_ptr<std::vector<std::int64_t>> rows = std::make_shared<std::vector<std::int64_t>>();
};
TORCH_MODULE(Net);

// "10+10+10"
std::string split(std::int64_t batch, int replicas) {
  Net net;
  lockstep::DataParallel<Net> parallel(net, {.cpu_replicas = replicas});
  const torch::NoGradGuard no_grad;
  parallel.forward(torch::zeros({batch, 16}));
  std::sort(net->rows->rbegin(), net->rows->rend());
  std::string text;
  for (const std::int64_t rows : *net->rows) text += (text.empty() ? "" : "+") + std::to_string(rows);
  return text;
}

// The weights of a layer after some steps.
torch::Tensor train(int replicas) {
  torch::manual_seed(1);
  Net net;
  lockstep::DataParallel<Net> parallel(net, {.cpu_replicas = replicas});
  torch::optim::SGD optimizer(parallel.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::Tensor loss;
  for (int step = 0; step < 100; ++step) {
    const torch::Tensor x = torch::randn({step % 10 == 9 ? 13 : 30, 16});  // the last batch of an epoch is odd
    const torch::Tensor labels = x.slice(1, 0, 4).argmax(1);
    optimizer.zero_grad();
    loss = torch::cross_entropy_loss(parallel.forward(x), labels);
    loss.backward();
    optimizer.step();
  }
  std::cout << replicas << " replica(s): loss " << loss.item<float>() << '\n';
  return net->hidden->weight.detach();
}

}  // namespace

int main() {
  for (const int replicas : {1, 2, 3}) std::cout << "30 inputs: " << split(30, replicas) << '\n';
  std::cout << "31 inputs: " << split(31, 3) << '\n';
  const torch::Tensor alone = train(1);
  const double difference = (train(2) - alone).abs().max().item<double>();
  std::cout << "the same weights: " << (difference < 1e-4 ? "yes" : "no") << '\n';
  return difference < 1e-4 ? 0 : 1;
}
