// Peer: collectives and messages of an MPI. --memory private:OPERATION or mpi:OPERATION.
#include "measure_operation.h"
#include "mpi_world.h"

namespace {

using lockstep::bench::Buffers;
using lockstep::bench::Kind;

void run(const Buffers& b) {
  const int share = int(b.share);
  const int size = int(b.whole.size());
  MPI_Comm world = MPI_COMM_WORLD;
  switch (b.kind) {
    case Kind::kBroadcast: MPI_Bcast(b.whole.data(), size, MPI_FLOAT, 0, world); break;
    case Kind::kReduce: MPI_Reduce(b.whole.data(), b.other.data(), size, MPI_FLOAT, MPI_SUM, 0, world); break;
    case Kind::kAllGather:
      MPI_Allgather(b.part.data(), share, MPI_FLOAT, b.whole.data(), share, MPI_FLOAT, world);
      break;
    case Kind::kGather: MPI_Gather(b.part.data(), share, MPI_FLOAT, b.whole.data(), share, MPI_FLOAT, 0, world); break;
    case Kind::kScatter:
      MPI_Scatter(b.whole.data(), share, MPI_FLOAT, b.part.data(), share, MPI_FLOAT, 0, world);
      break;
    case Kind::kReduceScatter:
      MPI_Reduce_scatter_block(b.whole.data(), b.part.data(), share, MPI_FLOAT, MPI_SUM, world);
      break;
    case Kind::kAllToAll:
      MPI_Alltoall(b.whole.data(), share, MPI_FLOAT, b.other.data(), share, MPI_FLOAT, world);
      break;
    case Kind::kSendReceive:
      if (b.rank == 0) MPI_Send(b.whole.data(), size, MPI_FLOAT, 1, 0, world);
      if (b.rank <= 1) MPI_Recv(b.other.data(), size, MPI_FLOAT, 1 - b.rank, 0, world, MPI_STATUS_IGNORE);
      if (b.rank == 1) MPI_Send(b.whole.data(), size, MPI_FLOAT, 0, 0, world);
      break;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::bench::MpiWorld world(argc, argv);
  const auto options = lockstep::bench::parse_options(argc, argv);
  const std::string memory = options.memory.substr(0, options.memory.find(':'));
  lockstep::bench::measure_operation(
      options, lockstep::bench::operation_of(options), world.rank(), world.size(),
      [&](std::size_t bytes) { return lockstep::bench::Memory(memory, bytes); }, world.barrier, world.longest, run);
}
