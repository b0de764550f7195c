// Peer: oneCCL's all-reduce on the CPU, float32 SUM, in place; started by Intel MPI, which also provides the barrier.
// --memory private or mpi.
#include <oneapi/ccl.hpp>

#include "measure.h"
#include "mpi_world.h"

// oneCCL plans an operation anew in each call unless it is told to keep the plan under a name ("operation caching").
struct Cached {
  explicit Cached(std::size_t count) : size(count), attributes(ccl::create_operation_attr<ccl::allreduce_attr>()) {
    attributes.set<ccl::operation_attr_id::to_cache>(true);
    attributes.set<ccl::operation_attr_id::match_id>(ccl::string_class(std::to_string(count)));
  }
  std::size_t size;
  ccl::allreduce_attr attributes;
};

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
  Cached cached(0);
  lockstep::bench::measure_all_reduce(
      options, world.rank(), world.size(),
      [&](std::size_t bytes) { return lockstep::bench::Memory(options.memory, bytes); }, world.barrier, world.longest,
      [&](std::span<float> data) {
        if (data.size() != cached.size) cached = Cached(data.size());  // in the first call, which is not timed
        ccl::allreduce(data.data(), data.data(), data.size(), ccl::reduction::sum, communicator, cached.attributes)
            .wait();
      });
  return 0;
}
