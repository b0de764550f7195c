// A job's program: joins the world that it was started in, and prints it.
#include <lockstep/c10d/distributed.h>
#include <lockstep/launch/world.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

namespace {

void join_world() {
  auto world = lockstep::launch::resolve_world({});
  if (!world.ok()) throw std::runtime_error(world.status().message());
  const lockstep::ProcessGroupGuard group;
  torch::Tensor sum = torch::full({1000}, group.rank() + 1);
  lockstep::all_reduce(sum);
  std::printf("rank %d of %d, local %d of %d, node %d of %d, by %s, sum %d\n", group.rank(), group.world_size(),
              world->local_rank, world->local_world_size, world->node_rank, world->num_nodes, world->source.c_str(),
              sum[999].item<int>());
}

}  // namespace

int main() {
  try {
    join_world();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "join_world: %s\n", error.what());
    return 1;
  }
}
