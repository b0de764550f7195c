// Uses weights that Python has saved from several ranks, each with a part of them.
//
//   torchrun --nproc-per-node 2 save.py checkpoint && ./distributed_checkpoint checkpoint
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "lockstep/checkpoint/distributed_checkpoint.h"
#include "lockstep/checkpoint/state_dict.h"

namespace checkpoint = lockstep::checkpoint;

namespace {

void use(const char* folder) {
  // Names and shapes of the layers are those of save.py.
  torch::nn::Sequential net(torch::nn::Linear(10, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));

  // Whole tensors, whatever the number of ranks was.
  const auto saved = checkpoint::read_distributed_checkpoint(folder).toGenericDict();
  checkpoint::load_state_dict(*net, checkpoint::to_state_dict(saved.at("model")));

  const torch::NoGradGuard no_grad;
  std::printf("C++: after %lld steps the output for ones is %.4f\n", static_cast<long long>(saved.at("step").toInt()),
              net->forward(torch::ones({1, 10})).item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: distributed_checkpoint FOLDER\n");
    return 2;
  }
  try {
    use(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distributed_checkpoint: %s\n", error.what());
    return 1;
  }
}
