// Code of docs/launching.md and docs/restarts.md, as it stands there.
#include <lockstep/launch/preemption.h>
#include <lockstep/launch/spawn.h>

namespace {

void train(long /*what*/) {}

[[maybe_unused]] bool from_cpp() {
  lockstep::launch::SpawnOptions options;
  options.nprocs = 2;
  auto status = lockstep::launch::spawn([](int rank) { train(rank); }, options);
  return status.ok();
}

void save_checkpoint(long /*step*/) {}

[[maybe_unused]] void until_preempted(long first, long last) {
  auto watch = lockstep::launch::PreemptionWatch::start();
  for (long step = first; step < last; ++step) {
    if (watch.value()->should_leave(step).value()) {
      save_checkpoint(step);
      break;
    }
    train(step);
  }
}

}  // namespace
