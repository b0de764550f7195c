// Code of docs/mpi_programs.md and of mpi_communicator.h, as it stands there.
#include <lockstep/c10d/mpi_communicator.h>
#include <mpi.h>
#include <torch/torch.h>

#include "lockstep/c10d/collectives.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "net.h"

extern "C" void start_training(const MPI_Fint* communicator) {
  lockstep::init_process_group(MPI_Comm_f2c(*communicator));
}

namespace {

using lockstep::Net;

void train(MPI_Comm communicator, Net& model, const torch::Tensor& inputs) {
  lockstep::init_process_group(communicator);  // collective over the ranks of the communicator
  lockstep::DistributedDataParallel<Net> ddp(model);
  ddp->forward(inputs).mean().backward();  // gradients are the mean over these ranks
  lockstep::destroy_process_group();
}

void with_groups(MPI_Comm all, MPI_Comm row) {
  lockstep::init_process_group(all);
  const lockstep::ProcessGroup of_row = lockstep::new_group(row);  // collective over the ranks of the row
  lockstep::all_reduce(torch::ones({3}), {.group = of_row});
}

[[maybe_unused]] void whole_program(int argc, char** argv, MPI_Comm communicator, Net& model,
                                    const torch::Tensor& inputs) {
  MPI_Init(&argc, &argv);
  train(communicator, model, inputs);
  with_groups(communicator, MPI_COMM_SELF);
  lockstep::init_process_group(communicator);  // collective over its ranks, which keep their order
  lockstep::DistributedDataParallel<Net> ddp(model);
  start_training(nullptr);
  lockstep::destroy_process_group();
  MPI_Finalize();
}

}  // namespace
