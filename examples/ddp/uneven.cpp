// Ranks with different numbers of batches: with join, those that have finished take part with zeros until all have, or
// the loop ends for all of them when the first has finished. Run with any number of processes:
//   lockstep run --nproc-per-node 3 ./ddp_uneven
#include <lockstep/c10d/distributed.h>
#include <lockstep/nn/distributed_data_parallel.h>
#include <torch/torch.h>

#include <iostream>

namespace {

using Net = torch::nn::Linear;

// How many steps this rank has taken. Rank 0 has three batches, each other rank one more than the rank before it.
int train(lockstep::DistributedDataParallel<Net>& ddp, const lockstep::JoinOptions& options) {
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  int steps = 0;
  const auto loop = [&] {
    for (int batch = 0; batch < 3 + lockstep::get_rank(); ++batch) {
      optimizer.zero_grad();
      ddp.forward(torch::randn({8, 4})).square().mean().backward();
      optimizer.step();
      ++steps;
    }
  };
  try {
    ddp.join(loop, options);
  } catch (const lockstep::UnevenInputsError&) {  // every rank gets it, after the same number of steps
    optimizer.zero_grad();
  }
  return steps;
}

bool same_on_all_ranks(const torch::Tensor& tensor) {
  const torch::Tensor mine = tensor.detach().flatten();
  const torch::Tensor all = torch::empty({lockstep::get_world_size() * mine.numel()});
  lockstep::all_gather_into_tensor(all, mine);
  return torch::equal(all, mine.repeat({lockstep::get_world_size()}));
}

}  // namespace

int main() {
  const lockstep::ProcessGroupGuard group;
  torch::manual_seed(100 + group.rank());  // every rank has data of its own
  Net net(4, 1);
  lockstep::DistributedDataParallel<Net> ddp(net);
  for (const bool throws : {false, true}) {
    const int steps = train(ddp, {.throw_on_early_termination = throws});
    const bool same = same_on_all_ranks(net->weight);
    std::cout << "Rank " << group.rank() << (throws ? " stopped with the first after " : " had ") << steps
              << " batches, and has " << (same ? "the weights of all" : "weights of its own") << std::endl;
  }
}
