// The same program on every backend: the sum of the ranks' numbers, computed on each rank's device.
//
//   ./any_backend                                              alone
//   lockstep run --nproc-per-node 4 ./any_backend              on Lockstep's engine
//   mpirun -n 4 ./any_backend mpi                              on the site's MPI
//   lockstep run --nproc-per-node gpu ./any_backend_gpu        on GPUs: the same program, linked with lockstep::nccl
#include <lockstep/c10d/distributed.h>
#include <torch/torch.h>

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  try {
    const lockstep::ProcessGroupGuard group(argc > 1 ? argv[1] : "");
    const torch::Tensor number = torch::full({1}, group.rank(), lockstep::local_device());
    lockstep::all_reduce(number);
    if (group.rank() == 0) {
      std::cout << "backend " << lockstep::get_backend() << " on " << lockstep::local_device()
                << ": the ranks of a world of " << group.world_size() << " sum up to " << number.item<double>()
                << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "any_backend: " << error.what() << std::endl;
    return 1;
  }
}
