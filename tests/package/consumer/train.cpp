// The shortest complete program, with its own dataset.
#include <lockstep/core.h>

#include <cstdio>

struct NetImpl : torch::nn::Module {
  NetImpl() { line = register_module("line", torch::nn::Linear(1, 1)); }
  torch::Tensor forward(const torch::Tensor& x) { return line(x); }
  torch::nn::Linear line{nullptr};
};
TORCH_MODULE(Net);

class Doubles : public lockstep::data::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  lockstep::data::Example get(std::int64_t index) const override {
    const double x = static_cast<double>(index) / 64.0;
    return {torch::tensor({x}), torch::tensor({2.0 * x})};
  }
};

int main(int argc, char** argv) {
  lockstep::ProcessGroupGuard group(argc > 1 ? argv[1] : "");
  const auto device = lockstep::local_device();
  Net net;
  net->to(device);
  lockstep::DistributedDataParallel<Net> ddp(net);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.3).momentum(0.5));
  lockstep::data::DataLoader loader(Doubles(), {.batch_size = 8, .shuffle = true});
  for (int epoch = 0; epoch < 50; ++epoch) {
    for (auto& [input, target] : loader) {
      optimizer.zero_grad();
      torch::mse_loss(ddp->forward(input.to(device)), target.to(device)).backward();
      optimizer.step();
    }
  }
  std::printf("rank %d of %d: slope %.2f\n", group.rank(), group.world_size(), net->line->weight.item<double>());
}
