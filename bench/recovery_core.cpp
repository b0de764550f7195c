// All-reduces until one fails, with the torch-free core: recovery_core FOLDER.
#include "core_world.h"
#include "recovery_program.h"

int main(int argc, char** argv) {
  using namespace lockstep;  // NOLINT(google-build-using-namespace): a program of one function
  if (argc != 2) bench::die(argv[0], "expected the name of a folder for reports");
  bench::CoreWorld world;
  comm::Communicator& group = *world.communicator;
  for (bool first = true;; first = false) {
    float value = 1.0F;
    bench::check(group.run(comm::AllReduce{&value, &value, 1}, Deadline::after(std::chrono::minutes(1))));
    if (value != float(group.group_size())) bench::die(argv[0], "wrong sum");
    if (first) bench::report_start(argv[1], group.rank(), group.group_size());
    bench::pause_between_steps();
  }
}
