// From the start to a world of init_process_group, with LibTorch: init_world FILE variables|communicator. `variables`:
// as the launcher has set them. `communicator`: after MPI_Init, from MPI_COMM_WORLD; started by mpirun.
#include <lockstep/c10d/distributed.h>
#include <lockstep/c10d/mpi_communicator.h>
#include <torch/torch.h>

#include <ctime>

#include "init_report.h"

namespace {

double processor_seconds() {
  std::timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

double reduced(double value, c10d::ReduceOp::RedOpType op) {
  const torch::Tensor tensor = torch::full({1}, value, torch::kDouble);
  lockstep::all_reduce(tensor, {.op = op});
  return tensor.item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT(google-build-using-namespace): a program of one function
  if (argc != 3) bench::die(argv[0], "expected the name of a file for the report, and variables or communicator");
  torch::set_num_threads(1);
  const bool by_communicator = std::string_view(argv[2]) == "communicator";
  if (by_communicator) MPI_Init(&argc, &argv);
  const double entered_at = bench::wall_clock();  // the start of MPI itself is not this program's
  const double processor_before = processor_seconds();
  by_communicator ? init_process_group(MPI_COMM_WORLD) : init_process_group();
  const int ranks = get_world_size();
  if (reduced(1, c10d::ReduceOp::SUM) != ranks) bench::die(argv[0], "wrong sum");
  const double done_at = bench::wall_clock();
  const double processor = reduced(processor_seconds() - processor_before, c10d::ReduceOp::SUM) / ranks;
  const double last_entered_at = reduced(entered_at, c10d::ReduceOp::MAX);
  const double last_done_at = reduced(done_at, c10d::ReduceOp::MAX);
  const double memory = reduced(bench::proportional_memory(), c10d::ReduceOp::SUM) / ranks;
  if (get_rank() == 0) {
    bench::report_init(argv[1], {.done_at = last_done_at,
                                 .bytes_per_rank = memory,
                                 .last_entered_at = last_entered_at,
                                 .processor_seconds = processor});
  }
  destroy_process_group();
  if (by_communicator) MPI_Finalize();
}
