// reduce: only rank 0 gets the sum. The other ranks' tensors do not change (other libraries may leave partial sums in
// them). Run with any number of processes.
#include <lockstep/c10d/distributed.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  const lockstep::ProcessGroupGuard group;
  const torch::Tensor tensor = torch::full({1}, group.rank() + 1.0);
  lockstep::reduce(tensor, /*dst=*/0);
  std::cout << "Rank " << group.rank() << " has data " << tensor[0].item<float>() << std::endl;
}
