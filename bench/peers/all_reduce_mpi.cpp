// Peer: all-reduce of an MPI (Open MPI, MPICH, Intel MPI), float32 SUM, in place. --memory private or mpi.
#include "mpi_world.h"

int main(int argc, char** argv) {
  const lockstep::bench::MpiWorld world(argc, argv);
  const auto options = lockstep::bench::parse_options(argc, argv);
  lockstep::bench::measure_all_reduce(
      options, world.rank(), world.size(),
      [&](std::size_t bytes) { return lockstep::bench::Memory(options.memory, bytes); }, world.barrier, world.longest,
      [](std::span<float> data) {
        MPI_Allreduce(MPI_IN_PLACE, data.data(), int(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      });
}
