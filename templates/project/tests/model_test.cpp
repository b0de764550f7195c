// The model gives one score for each class, and learns.
#include <cstdio>
#include <cstdlib>

#include "model/net.h"

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  torch::manual_seed(1);
  Net net(3);
  const torch::Tensor pictures = torch::randn({6, 3, 32, 32});
  const torch::Tensor labels = torch::arange(6) % 3;
  expect(net->forward(pictures).sizes() == torch::IntArrayRef({6, 3}), "six pictures have six times three scores");
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  const auto loss = [&] { return torch::nn::functional::cross_entropy(net->forward(pictures), labels); };
  const double before = loss().item<double>();
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  expect(loss().item<double>() < before, "ten steps make the loss smaller");
}
