// Peer: oneCCL's all-reduce on the CPU, float32 SUM, in place; started by Intel MPI, which also provides the barrier.
#include <mpi.h>

#include <oneapi/ccl.hpp>

#include "measure.h"

int main(int argc, char** argv) {
  ccl::init();
  MPI_Init(&argc, &argv);
  int rank = 0;
  int world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  {
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> kvs;
    if (rank == 0) {
      kvs = ccl::create_main_kvs();
      address = kvs->get_address();
    }
    MPI_Bcast(address.data(), int(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) kvs = ccl::create_kvs(address);
    auto communicator = ccl::create_communicator(world, rank, kvs);
    lockstep::bench::measure_all_reduce(
        lockstep::bench::parse_options(argc, argv), rank, world, lockstep::bench::allocate_private,
        [] { MPI_Barrier(MPI_COMM_WORLD); },
        [&](std::span<float> data) {
          ccl::allreduce(data.data(), data.data(), data.size(), ccl::reduction::sum, communicator).wait();
        });
  }
  MPI_Finalize();
  return 0;
}
