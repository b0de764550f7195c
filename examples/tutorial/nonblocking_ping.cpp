// The same without blocking: isend and irecv return a request at once. Neither the sender nor the receiver may touch
// its tensor before wait() returns. Run with 2 processes.
#include <lockstep/c10d/distributed.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  const lockstep::ProcessGroupGuard group;
  torch::Tensor tensor = torch::zeros(1);
  lockstep::Work request;
  if (group.rank() == 0) {
    tensor += 1;
    request = lockstep::isend(tensor, /*dst=*/1);
    std::cout << "Rank 0 started sending" << std::endl;
  } else {
    request = lockstep::irecv(tensor, /*src=*/0);
    std::cout << "Rank 1 started receiving" << std::endl;
  }
  request->wait();
  std::cout << "Rank " << group.rank() << " has data " << tensor[0].item<float>() << std::endl;
}
