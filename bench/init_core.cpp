// From the start to the first all-reduce, with the torch-free core: init_core FILE. Peer: peers/init_mpi.cpp.
#include "core_world.h"
#include "init_report.h"

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT(google-build-using-namespace): a program of one function
  if (argc != 2) bench::die(argv[0], "expected the name of a file for the report");
  bench::CoreWorld world;
  const auto sum = [&](float value) {
    bench::check(world.communicator->run(comm::AllReduce{&value, &value, 1}, Deadline::never()));
    return value;
  };
  const int ranks = world.communicator->group_size();
  if (sum(1.0F) != float(ranks)) bench::die(argv[0], "wrong sum");
  const double done_at = bench::wall_clock();
  const float memory = sum(bench::proportional_memory()) / float(ranks);
  if (world.communicator->rank() == 0) bench::report_init(argv[1], {.done_at = done_at, .bytes_per_rank = memory});
  return 0;
}
