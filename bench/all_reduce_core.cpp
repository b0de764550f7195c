// All-reduce of the torch-free core, float32 SUM, in place. --memory shared: buffers of the arena; private: any other
// memory. Started by `lockstep run`; peers: peers/all_reduce_mpi.cpp and peers/all_reduce_oneccl.cpp.
#include <functional>

#include "core_world.h"

namespace {

using Owner = std::unique_ptr<float, std::function<void(float*)>>;

Owner allocate_shared(const std::shared_ptr<lockstep::comm::SharedArena>& arena, std::size_t bytes) {
  auto* memory = reinterpret_cast<float*>(lockstep::bench::take(arena->allocate(bytes)));
  return {memory, [arena](float* data) { arena->deallocate(reinterpret_cast<std::byte*>(data)); }};
}

Owner allocate_foreign(std::size_t bytes) {
  return {lockstep::bench::allocate_private(bytes).release(), std::free};
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = lockstep::bench::parse_options(argc, argv);
  const bool shared = options.memory == "shared";
  if (!shared && options.memory != "private") lockstep::bench::die("--memory", "expected shared or private");
  lockstep::bench::CoreWorld world;
  lockstep::bench::measure_all_reduce(
      options, world.communicator->rank(), world.communicator->group_size(),
      [&](std::size_t bytes) { return shared ? allocate_shared(world.arena, bytes) : allocate_foreign(bytes); },
      [&] { world.barrier(); }, [&](std::span<double> seconds) { world.longest(seconds); },
      [&](std::span<float> data) {
        lockstep::comm::AllReduce args;
        args.input = data.data();
        args.output = data.data();
        args.count = data.size();
        lockstep::bench::check(world.communicator->run(args, lockstep::Deadline::never()));
      });
  return 0;
}
