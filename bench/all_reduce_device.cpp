// All-reduce of tensors of a device, float32 SUM. --memory DEVICE:BACKEND, for example cuda:nccl, or cuda:lockstep,
// which goes through page-locked memory of the host. A call is over when the device has the result. Started by
// `lockstep run`; peer: peers/c10d_collectives.py.
#include <lockstep/c10d/distributed.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include "measure.h"

namespace {

using lockstep::bench::die;

struct Place {
  torch::Device device;
  std::string backends;
};

// Barriers and times are tensors of the CPU.
Place place_of(const std::string& memory) {
  const std::size_t colon = memory.find(':');
  if (colon == std::string::npos) die("--memory", "expected DEVICE:BACKEND, found '" + memory + "'");
  const std::string device = memory.substr(0, colon);
  const std::string backend = memory.substr(colon + 1);
  if (device == "cpu") return {torch::kCPU, backend};
  const lockstep::CudaSupport support = lockstep::load_cuda();
  if (!support.loaded || !torch::cuda::is_available()) die("--memory " + memory, "no GPU: " + support.reason);
  return {torch::Device(torch::kCUDA, 0), "cpu:lockstep,cuda:" + backend};
}

class Measurement {
 public:
  explicit Measurement(torch::Device device) : device_(device) {}

  std::vector<double> seconds(const lockstep::bench::Step& step, int rank, int world) const {
    constexpr int kWarmUp = 5;
    const auto count = static_cast<std::int64_t>(step.bytes / sizeof(float));
    const torch::Tensor pattern = (torch::arange(count, torch::kFloat) % 8).to(device_);
    const torch::Tensor tensor = torch::empty_like(pattern);
    std::vector<double> found;
    for (int repetition = -kWarmUp; repetition < step.repetitions; ++repetition) {
      const int value = (repetition + kWarmUp) % 64;
      tensor.copy_(pattern).add_(value + rank);
      finish();
      lockstep::barrier();
      const double start = lockstep::bench::now();
      lockstep::all_reduce(tensor);
      finish();
      const double end = lockstep::bench::now();
      if (repetition >= 0) found.push_back(end - start);
      const torch::Tensor expected = pattern * world + (world * value + world * (world - 1) / 2);
      if (!torch::equal(tensor, expected)) die("all_reduce", "wrong sum of " + std::to_string(step.bytes) + " bytes");
    }
    return found;
  }

 private:
  void finish() const {
    if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  }

  torch::Device device_;
};

}  // namespace

int main(int argc, char** argv) {
  const auto options = lockstep::bench::parse_options(argc, argv);
  torch::set_num_threads(1);
  const Place place = place_of(options.memory);
  const lockstep::ProcessGroupGuard group(place.backends);
  lockstep::bench::Report report(options.output, group.rank());
  const Measurement measurement(place.device);
  for (const lockstep::bench::Step& step : options.plan) {
    std::vector<double> seconds = measurement.seconds(step, group.rank(), group.world_size());
    at::Tensor longest = at::from_blob(seconds.data(), {static_cast<std::int64_t>(seconds.size())}, at::kDouble);
    lockstep::all_reduce(longest, {.op = c10d::ReduceOp::MAX});
    report.add(step.bytes, seconds);
  }
  return 0;
}
