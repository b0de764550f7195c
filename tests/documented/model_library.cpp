// Code of docs/train.md.
#include <lockstep/trainer/model_library.h>

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const lockstep::ModelRequest& request)
      : body(register_module(
            "body", torch::nn::Linear(request.channels * request.height * request.width, request.num_classes))) {}
  torch::Tensor forward(const torch::Tensor& pictures) { return body->forward(pictures.flatten(1)); }
  torch::nn::Linear body;
};

std::shared_ptr<NetImpl> make_net(const lockstep::ModelRequest& request) {
  return std::make_shared<NetImpl>(request);
}
LOCKSTEP_MODEL(make_net)
