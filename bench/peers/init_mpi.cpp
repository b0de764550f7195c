// Peer: from nothing to the first all-reduce of an MPI: init_mpi FILE.
#include <mpi.h>

#include "init_report.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) lockstep::bench::die(argv[0], "expected the name of a file for the report");
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto sum = [](float value) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return value;
  };
  if (sum(1.0F) != float(ranks)) lockstep::bench::die(argv[0], "wrong sum");
  const double done_at = lockstep::bench::wall_clock();
  const float memory = sum(lockstep::bench::proportional_memory()) / float(ranks);
  if (rank == 0) lockstep::bench::report_init(argv[1], done_at, memory);
  MPI_Finalize();
  return 0;
}
