// The machine's limit for an in-place all-reduce of 2 ranks: two processes, each of which adds two private arrays in
// place (a += b), without any exchange. For a size S each process has two arrays of S/2. So all arrays take as much
// memory as the all-reduce's buffers, and each process does as many additions as a rank. It reads 2 arrays and writes
// 1: 3 * S/2 bytes per process. Started by `lockstep run`; the ranks only use a barrier.
#include <lockstep/reduce/reduce.h>

#include <array>

#include "core_world.h"

namespace {

// Uses the engine's kernel: a plain loop may not use the widest vectors, and the limit would be too low.
void add_in_place(std::span<float> a, std::span<const float> b) {
  const std::array inputs{std::as_bytes(a).data(), std::as_bytes(b).data()};
  const std::array outputs{std::as_writable_bytes(a).data()};
  lockstep::comm::reduce(lockstep::comm::Reduction{}, inputs, outputs, a.size());
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kWarmUp = 3;
  const auto options = lockstep::bench::parse_options(argc, argv);
  lockstep::bench::CoreWorld world;
  const int rank = world.communicator->rank();
  lockstep::bench::Report report(options.output, rank);
  for (const auto& step : options.plan) {
    const std::size_t bytes = step.bytes / 2;
    const auto a_owner = lockstep::bench::allocate_private(bytes);
    const auto b_owner = lockstep::bench::allocate_private(bytes);
    const std::span<float> a(a_owner.get(), bytes / sizeof(float));
    const std::span<float> b(b_owner.get(), bytes / sizeof(float));
    std::vector<double> seconds;
    for (int repetition = -kWarmUp; repetition < step.repetitions; ++repetition) {
      lockstep::bench::fill(a, repetition + kWarmUp, 0);
      lockstep::bench::fill(b, repetition + kWarmUp, 1);
      world.barrier();
      const double start = lockstep::bench::now();
      add_in_place(a, b);
      const double end = lockstep::bench::now();
      if (repetition >= 0) seconds.push_back(end - start);
      if (!lockstep::bench::holds_sum(a, repetition + kWarmUp, 2)) lockstep::bench::die("memory_limit", "wrong sum");
    }
    report.add(step.bytes, seconds);
  }
  return 0;
}
