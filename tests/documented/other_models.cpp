// Code of docs/scripted_models.md and of the header that it is about, as it stands there.
#include <torch/script.h>
#include <torch/torch.h>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/nn/as_module.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/exponential_moving_average.h"

namespace {

[[maybe_unused]] void what_takes_a_module(lockstep::checkpoint::Checkpoint& checkpoint) {
  torch::jit::Module net = torch::jit::load("net.pt");  // exported by Python
  const auto model = lockstep::as_module(net);          // the same tensors, under the same names
  lockstep::DistributedDataParallel ddp(net);           // wrappers and the Trainer take the model itself
  torch::optim::Adam optimizer(ddp.parameters(), 1e-3);
  lockstep::ExponentialMovingAverage average(*model);
  checkpoint.add_model(*model);
}

template <typename AnyLoader>
[[maybe_unused]] void scripted(AnyLoader& loader) {
  torch::jit::Module net = torch::jit::load("net.pt");
  const auto model = lockstep::as_module(net);  // the same tensors, under the same names, as a torch::nn::Module
  lockstep::DistributedDataParallel ddp(net);   // the wrapper takes the model itself
  torch::optim::Adam optimizer(ddp.parameters(), 1e-3);
  for (auto& [points, labels] : loader) {
    optimizer.zero_grad();
    const torch::IValue output = ddp->get_method("training_step")({points, labels});
    output.toTupleRef().elements()[0].toTensor().backward();
    lockstep::clip_grad_norm_(*model, 1.0);
    optimizer.step();
  }
  net.save("trained.pt");                                                                        // torch.jit.load
  lockstep::checkpoint::write_state_dict("state.pt", lockstep::checkpoint::state_dict(*model));  // load_state_dict
}

struct Line {
  torch::Tensor weight = torch::zeros({3, 1}).requires_grad_();
  std::vector<lockstep::NamedParameter> named_parameters() const { return {{"weight", weight}}; }
  torch::Tensor forward(const torch::Tensor& x) const { return x.matmul(weight); }
};

[[maybe_unused]] void object() {
  const auto line = std::make_shared<Line>();
  lockstep::DistributedDataParallel ddp(line);
}

}  // namespace
