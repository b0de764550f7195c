// A group of ranks {0, 1} in a world of four: an all-reduce of ones over the group does not change the other ranks'
// tensors. The ranks end with 2, 2, 1, 1. Run with 4 processes.
#include <lockstep/c10d/distributed.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  const lockstep::ProcessGroupGuard world;
  // Every rank may call this. Outside the group the handle only answers questions: get_rank(group) is -1 there.
  const lockstep::ProcessGroup group = lockstep::new_group({0, 1});
  const torch::Tensor tensor = torch::ones(1);
  if (lockstep::get_rank(group) >= 0) lockstep::all_reduce(tensor, {.op = c10d::ReduceOp::SUM, .group = group});
  std::cout << "Rank " << world.rank() << " has data " << tensor[0].item<float>() << std::endl;
}
