// Blocking point-to-point: rank 0 sends a 1 to rank 1, which waits for it. Run with 2 processes:
//   lockstep run --nproc-per-node 2 ./tutorial_blocking_ping
#include <lockstep/c10d/distributed.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  const lockstep::ProcessGroupGuard group;
  torch::Tensor tensor = torch::zeros(1);
  if (group.rank() == 0) {
    tensor += 1;
    lockstep::send(tensor, /*dst=*/1);
  } else {
    lockstep::recv(tensor, /*src=*/0);
  }
  std::cout << "Rank " << group.rank() << " has data " << tensor[0].item<float>() << std::endl;
}
