// Code of docs/train.md. The tests of `lockstep train` load it.
#include <lockstep/trainer/model_library.h>

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const lockstep::ModelRequest& request) {
    const std::int64_t hidden = std::stoll(request.options.at("hidden"));
    body = register_module(
        "body", torch::nn::Sequential(torch::nn::Flatten(),
                                      torch::nn::Linear(request.channels * request.height * request.width, hidden),
                                      torch::nn::ReLU(), torch::nn::Linear(hidden, request.num_classes)));
  }
  torch::Tensor forward(const torch::Tensor& pictures) { return body->forward(pictures); }
  torch::nn::Sequential body{nullptr};
};

std::shared_ptr<NetImpl> make_net(const lockstep::ModelRequest& request) {
  return std::make_shared<NetImpl>(request);
}
LOCKSTEP_MODEL(make_net)
