// An all-reduce by hand: each rank sends the value that it received last to the next rank of a ring, and adds up all
// values. A batch sends and receives at the same time, so no rank has to go first. Run with any number of processes.
#include <lockstep/c10d/distributed.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  using Kind = lockstep::PointToPoint::Kind;
  const lockstep::ProcessGroupGuard world;
  const int next = (world.rank() + 1) % world.world_size();
  const int previous = (world.rank() + world.world_size() - 1) % world.world_size();
  torch::Tensor passing = torch::full({1}, world.rank() + 1);
  torch::Tensor arriving = torch::zeros_like(passing);
  torch::Tensor sum = passing.clone();
  for (int round = 1; round < world.world_size(); ++round) {
    const std::vector<lockstep::PointToPoint> batch{{Kind::kSend, passing, next}, {Kind::kReceive, arriving, previous}};
    for (const lockstep::Work& work : lockstep::batch_isend_irecv(batch)) work->wait();
    sum += arriving;
    std::swap(passing, arriving);
  }
  std::cout << "Rank " << world.rank() << " has data " << sum.item<int>() << std::endl;
}
