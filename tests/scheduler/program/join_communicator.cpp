// A job's program with an MPI of its own: the ranks of MPI_COMM_WORLD in reverse order become the world.
#include <lockstep/c10d/distributed.h>
#include <lockstep/c10d/mpi_communicator.h>
#include <mpi.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

namespace {

void join(const char* backend) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm backwards = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards);
  try {
    const lockstep::ProcessGroupGuard group(backend, {.communicator = lockstep::mpi_communicator(backwards)});
    torch::Tensor sum = torch::full({1000}, group.rank() + 1);
    lockstep::all_reduce(sum);
    std::printf("rank %d of %d, in MPI_COMM_WORLD %d, local %d, sum %d\n", group.rank(), group.world_size(), rank,
                lockstep::get_local_rank(), sum[999].item<int>());
  } catch (const std::exception& error) {
    std::printf("refused: %s\n", error.what());
  }
  int ranks = 1;
  MPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_INT, MPI_SUM, backwards);
  std::printf("then %d ranks of MPI\n", ranks);
  MPI_Comm_free(&backwards);
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  join(argc > 1 ? argv[1] : "lockstep");
  MPI_Finalize();
}
