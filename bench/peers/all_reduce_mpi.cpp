// Peer: all-reduce of an MPI (Open MPI, MPICH, Intel MPI), float32 SUM, in place.
#include "measure.h"
#include "mpi_world.h"

int main(int argc, char** argv) {
  const lockstep::bench::MpiWorld world(argc, argv);
  lockstep::bench::measure_all_reduce(
      lockstep::bench::parse_options(argc, argv), world.rank(), world.size(), lockstep::bench::allocate_private,
      world.barrier, world.longest, [](std::span<float> data) {
        MPI_Allreduce(MPI_IN_PLACE, data.data(), int(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      });
}
