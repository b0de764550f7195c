// Two replicas of a layer, each spread over half of the ranks: dimension "dp" has the replicas, "tp" the parts of one.
// Every replica has its own samples, and its ranks have these samples together. Run with an even number of processes.
#include <lockstep/c10d/device_mesh.h>
#include <lockstep/c10d/distributed.h>
#include <lockstep/data/distributed_sampler.h>

#include <iostream>

int main() {
  const lockstep::ProcessGroupGuard world;
  const lockstep::DeviceMesh mesh = lockstep::init_device_mesh(torch::kCPU, {2, world.world_size() / 2}, {"dp", "tp"});
  const lockstep::ProcessGroup replicas = mesh.get_group("dp");
  const lockstep::ProcessGroup parts = mesh.get_group("tp");

  // Replica 0 has samples 0 and 2, replica 1 has 1 and 3.
  const std::vector<std::int64_t> samples =
      lockstep::data::DistributedSampler(4, {.shuffle = false, .group = replicas}).indices();
  // This rank's part of the layer sees two of the features. The parts' outputs add up to the layer's.
  const torch::Tensor features = torch::tensor(samples, torch::kFloat).unsqueeze(1).expand({-1, 2});
  const torch::Tensor outputs = torch::matmul(features, torch::ones({2}));
  lockstep::all_reduce(outputs, {.group = parts});
  const torch::Tensor mean = outputs.mean();
  lockstep::all_reduce(mean, {.op = c10d::ReduceOp::AVG, .group = replicas});
  std::cout << "Rank " << world.rank() << " is part " << mesh.get_local_rank("tp") << " of replica "
            << mesh.get_local_rank("dp") << ": outputs " << outputs[0].item<float>() << " and "
            << outputs[1].item<float>() << ", mean over replicas " << mean.item<float>() << std::endl;
}
