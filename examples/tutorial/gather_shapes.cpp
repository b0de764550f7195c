// All-gather of tensors whose shapes the other ranks do not know: each rank sends its tensor as an object. Run with any
// number of processes.
#include <lockstep/c10d/distributed.h>
#include <lockstep/c10d/objects.h>

#include <iostream>

int main() {
  const lockstep::ProcessGroupGuard group;
  const torch::Tensor mine = torch::ones({group.rank() + 1, 2});
  const std::vector<torch::Tensor> all = lockstep::all_gather_object(mine);
  std::string shapes;
  for (const torch::Tensor& tensor : all) shapes += c10::str(tensor.sizes());
  std::cout << "Rank " << group.rank() << " has shapes " << shapes << std::endl;
}
