// Peer: all-reduce of an MPI (Open MPI, Intel MPI), float32 SUM, in place.
#include <mpi.h>

#include "measure.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  // MPI's errors are fatal by default, so the calls need no checks.
  lockstep::bench::measure_all_reduce(
      lockstep::bench::parse_options(argc, argv), rank, world, lockstep::bench::allocate_private,
      [] { MPI_Barrier(MPI_COMM_WORLD); },
      [](std::span<float> data) {
        MPI_Allreduce(MPI_IN_PLACE, data.data(), int(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      });
  MPI_Finalize();
  return 0;
}
