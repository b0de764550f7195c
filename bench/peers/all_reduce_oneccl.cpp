// Peer: oneCCL's all-reduce on the CPU, float32 SUM, in place; started by Intel MPI, which also provides the barrier.
// --memory private or mpi.
#include <oneapi/ccl.hpp>

#include "measure.h"
#include "mpi_world.h"

int main(int argc, char** argv) {
  ccl::init();
  const lockstep::bench::MpiWorld world(argc, argv);
  ccl::kvs::address_type address;
  ccl::shared_ptr_class<ccl::kvs> kvs;
  if (world.rank() == 0) {
    kvs = ccl::create_main_kvs();
    address = kvs->get_address();
  }
  MPI_Bcast(address.data(), int(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (world.rank() != 0) kvs = ccl::create_kvs(address);
  auto communicator = ccl::create_communicator(world.size(), world.rank(), kvs);
  const auto options = lockstep::bench::parse_options(argc, argv);
  lockstep::bench::measure_all_reduce(
      options, world.rank(), world.size(),
      [&](std::size_t bytes) { return lockstep::bench::Memory(options.memory, bytes); }, world.barrier, world.longest,
      [&](std::span<float> data) {
        ccl::allreduce(data.data(), data.data(), data.size(), ccl::reduction::sum, communicator).wait();
      });
  return 0;
}
