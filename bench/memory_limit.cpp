// The machine's limit for an in-place all-reduce: the same processes move the same bytes on the same pages, with the
// same additions and the same kernel, but each in memory of its own, without any exchange. Of n ranks with S bytes
// each, a rank of the fused all-reduce reads its share (S/n) of n buffers and writes the sum to all of them. So each
// process here has n arrays of S/n bytes, reads them all and writes the sum to all: 2S bytes a process. The time of a
// call is that of the slowest process. Started by `lockstep run`; the ranks only use a barrier.
#include <lockstep/reduce/reduce.h>

#include "core_world.h"

namespace {

// The engine's kernel: a plain loop may not use the widest vectors, and the limit would be too low.
void add_into_all(std::span<const std::span<float>> arrays) {
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (const std::span<float> array : arrays) {
    inputs.push_back(std::as_bytes(array).data());
    outputs.push_back(std::as_writable_bytes(array).data());
  }
  lockstep::comm::reduce(lockstep::comm::Reduction{}, inputs, outputs, arrays[0].size());
}

void measure(lockstep::bench::CoreWorld& world, const lockstep::bench::Step& step, lockstep::bench::Report& report) {
  constexpr int kWarmUp = 3;
  const int ranks = world.communicator->group_size();
  const std::size_t floats = step.bytes / sizeof(float) / static_cast<std::size_t>(ranks);
  std::vector<std::unique_ptr<float, lockstep::bench::Free>> owners;
  std::vector<std::span<float>> arrays;
  for (int i = 0; i < ranks; ++i) {
    owners.push_back(lockstep::bench::allocate_private(floats * sizeof(float)));
    arrays.emplace_back(owners.back().get(), floats);
  }
  std::vector<double> seconds;
  for (int repetition = -kWarmUp; repetition < step.repetitions; ++repetition) {
    for (int i = 0; i < ranks; ++i) lockstep::bench::fill(arrays[i], repetition + kWarmUp, i);
    world.barrier();
    const double start = lockstep::bench::now();
    add_into_all(arrays);
    const double end = lockstep::bench::now();
    world.barrier();
    if (repetition >= 0) seconds.push_back(end - start);
    for (const std::span<float> array : arrays) {
      if (!lockstep::bench::holds_sum(array, repetition + kWarmUp, ranks)) {
        lockstep::bench::die("memory_limit", "wrong sum");
      }
    }
  }
  world.longest(seconds);
  report.add(step.bytes, seconds);
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = lockstep::bench::parse_options(argc, argv);
  lockstep::bench::CoreWorld world;
  lockstep::bench::Report report(options.output, world.communicator->rank());
  for (const auto& step : options.plan) measure(world, step, report);
  return 0;
}
