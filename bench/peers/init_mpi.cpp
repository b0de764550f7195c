// Peer: from the start to the first all-reduce of an MPI: init_mpi FILE.
#include "init_report.h"
#include "mpi_world.h"

int main(int argc, char** argv) {
  const lockstep::bench::MpiWorld world(argc, argv);
  if (argc != 2) lockstep::bench::die(argv[0], "expected the name of a file for the report");
  const auto sum = [](float value) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return value;
  };
  const auto ranks = float(world.size());
  if (sum(1.0F) != ranks) lockstep::bench::die(argv[0], "wrong sum");
  const double done_at = lockstep::bench::wall_clock();
  const float memory = sum(lockstep::bench::proportional_memory()) / ranks;
  if (world.rank() == 0) lockstep::bench::report_init(argv[1], {.done_at = done_at, .bytes_per_rank = memory});
}
