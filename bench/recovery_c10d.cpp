// All-reduces until one fails, with LibTorch: recovery_c10d FOLDER. The error ends the program.
#include <lockstep/c10d/distributed.h>

#include <exception>

#include "recovery_program.h"

int main(int argc, char** argv) try {
  namespace bench = lockstep::bench;
  if (argc != 2) bench::die(argv[0], "expected the name of a folder for reports");
  const lockstep::ProcessGroupGuard group("lockstep");
  for (bool first = true;; first = false) {
    at::Tensor value = at::ones({1});
    lockstep::all_reduce(value);
    if (value.item<float>() != float(group.world_size())) bench::die(argv[0], "wrong sum");
    if (first) bench::report_start(argv[1], group.rank(), group.world_size());
    bench::pause_between_steps();
  }
} catch (const std::exception& error) {
  lockstep::bench::die(argv[0], error.what());
}
