// A grid of ranks with two rows: every rank is in the group of its row and in the group of its column. Run with an even
// number of processes.
#include <lockstep/c10d/distributed.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  const lockstep::ProcessGroupGuard world;
  const int columns = world.world_size() / 2;
  // Ranks with the same color form a group and keep their order in it.
  const lockstep::ProcessGroup row = lockstep::split_group(/*color=*/world.rank() / columns);
  const lockstep::ProcessGroup column = lockstep::split_group(/*color=*/world.rank() % columns);
  const torch::Tensor in_row = torch::full({1}, world.rank());
  const torch::Tensor in_column = in_row.clone();
  lockstep::all_reduce(in_row, {.group = row});
  lockstep::all_reduce(in_column, {.group = column});
  std::cout << "Rank " << world.rank() << " has " << in_row.item<int>() << " in its row, " << in_column.item<int>()
            << " in its column" << std::endl;
}
