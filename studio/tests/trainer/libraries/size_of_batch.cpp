// A shared object with a model that a trace does not follow: its forward() takes the size of the batch for a number.
#include <lockstep/trainer/model_library.h>

struct SizeOfBatchImpl : torch::nn::Module {
  explicit SizeOfBatchImpl(const lockstep::ModelRequest& request) {
    head = register_module("head",
                           torch::nn::Linear(request.channels * request.height * request.width, request.num_classes));
  }
  torch::Tensor forward(const torch::Tensor& pictures) {
    return head->forward(pictures.reshape({pictures.size(0), -1}));
  }
  torch::nn::Linear head{nullptr};
};

std::shared_ptr<SizeOfBatchImpl> make_size_of_batch(const lockstep::ModelRequest& request) {
  return std::make_shared<SizeOfBatchImpl>(request);
}
LOCKSTEP_MODEL(make_size_of_batch)
