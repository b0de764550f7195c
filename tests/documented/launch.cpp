// Code of docs/launching.md, as it stands there.
#include <lockstep/launch/spawn.h>

namespace {

void train(int /*rank*/) {}

[[maybe_unused]] bool from_cpp() {
  lockstep::launch::SpawnOptions options;
  options.nprocs = 2;
  auto status = lockstep::launch::spawn([](int rank) { train(rank); }, options);
  return status.ok();
}

}  // namespace
