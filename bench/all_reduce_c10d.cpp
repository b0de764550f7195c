// All-reduce through the c10d layer, float32 SUM. --memory shared: tensors from the backend's allocator, like DDP's
// buckets; private: any other tensor. Started by `lockstep run`; peer: peers/c10d_collectives.py.
#include <lockstep/c10d/distributed.h>

#include "measure.h"

namespace {

// Lets measure_all_reduce use a tensor as an owner of floats.
struct TensorMemory {
  at::Tensor tensor;
  float* get() const { return tensor.data_ptr<float>(); }
};

at::Tensor allocate(const lockstep::bench::Options& options, std::size_t bytes) {
  const auto count = std::int64_t(bytes / sizeof(float));
  if (options.memory == "private") return at::empty({count}, at::kFloat);
  if (options.memory != "shared") lockstep::bench::die("--memory", "expected shared or private");
  const auto backend = lockstep::default_group()->getBackend(c10::DeviceType::CPU);
  return backend->allocateTensor(count, at::TensorOptions(at::kFloat));
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = lockstep::bench::parse_options(argc, argv);
  const lockstep::ProcessGroupGuard group("lockstep");
  at::Tensor tensor;
  lockstep::bench::measure_all_reduce(
      options, group.rank(), group.world_size(),
      [&](std::size_t bytes) {
        tensor = allocate(options, bytes);
        return TensorMemory{tensor};
      },
      [] { lockstep::barrier(); },
      [](std::span<double> seconds) {
        at::Tensor longest = at::from_blob(seconds.data(), {std::int64_t(seconds.size())}, at::kDouble);
        lockstep::all_reduce(longest, {.op = c10d::ReduceOp::MAX});
      },
      [&](std::span<float>) { lockstep::all_reduce(tensor); });
  return 0;
}
