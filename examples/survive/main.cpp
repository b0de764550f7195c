// Training that outlives its ranks. Run it once without and once with deaths:
//
//   lockstep run --nproc-per-node 4 ./survive
//   lockstep run --nproc-per-node 4 --min-workers 2 --newcomers 2 ./survive 60:0 130:2
//
// In the second run rank 0 kills itself in step 60, and rank 2 in step 130. The launcher starts a new process for each,
// which takes the rank's place, and the failed step is done again. Both runs print the same digest of the weights: they
// are the same bit for bit. Without --newcomers the ranks that are left go on alone.
#include <lockstep/core.h>
#include <lockstep/launch/newcomer.h>
#include <torch/torch.h>

#include <csignal>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

namespace {

constexpr int kSteps = 200;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::dropout(torch::relu(first(x)), 0.2, is_training()));
  }
  torch::nn::Linear first{16, 64}, last{64, 4};
};
TORCH_MODULE(Net);

lockstep::data::TensorDataset make_samples() {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({1000, 16});
  return {x, x.mm(torch::randn({16, 4})).argmax(1)};
}

std::size_t digest(const Net& net) {
  const torch::Tensor weights = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  return std::hash<std::string_view>()({static_cast<const char*>(weights.const_data_ptr()), weights.nbytes()});
}

}  // namespace

int main(int argc, char** argv) {
  // In all processes alike. In a process that the launcher starts for a dead one, this world has one rank at first.
  const lockstep::ProcessGroupGuard world("", {.enable_reconfigure = true});
  lockstep::MicroBatchLoader loader(make_samples(), {.batch_size = 8, .shuffle = true});
  Net net;
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::optional<lockstep::DistributedDataParallel<Net>> ddp;

  // Each of the arguments is STEP:RANK. The process that replaces a dead one does not kill itself again.
  const bool is_newcomer = lockstep::launch::replaced_rank().value().has_value();
  const auto die_in = [&](std::int64_t step) {
    const std::string now = std::to_string(step) + ":" + std::to_string(lockstep::get_rank());
    for (int i = 1; i < argc; ++i) {
      if (!is_newcomer && argv[i] == now) raise(SIGKILL);
    }
  };

  lockstep::ElasticTraining training({.rebuild = [&] { ddp.emplace(net); }, .seed = 1});
  training.add_model(*net);
  training.add_optimizer(optimizer);
  training.add_loader(loader);
  if (!training.join()) return 0;  // this process was not needed any more
  training.run(kSteps, {.gradients =
                            [&](lockstep::ElasticStep& step) {
                              step.backward(*ddp, [&](const lockstep::MicroBatch& micro_batch) {
                                lockstep::data::Example& batch = loader.next(micro_batch);
                                return torch::cross_entropy_loss((*ddp)->forward(batch.data), batch.target);
                              });
                              die_in(step.number());
                            },
                        .update = [&](std::int64_t) { optimizer.step(); }});
  if (lockstep::get_rank() != 0) return 0;
  std::cout << kSteps << " steps, " << lockstep::get_world_size()
            << " ranks at the end. Digest of the weights: " << std::hex << digest(net) << std::endl;
  return 0;
}
