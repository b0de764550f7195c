#include "channel_moments.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "base/instruction_set.h"

namespace lockstep::nn_detail {

bool has_channel_moments(const torch::Tensor& input) {
  constexpr std::int64_t kFewest = 16;
  return input.is_cpu() && input.layout() == torch::kStrided && input.scalar_type() == torch::kFloat &&
         input.dim() > 2 && input.numel() > 0 && input.is_contiguous() &&
         input.numel() >= kFewest * input.size(0) * input.size(1);
}

MomentsKernel moments_kernel(InstructionSet set) {
  switch (set) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512: return moments_avx512;
    case InstructionSet::kAvx2: return moments_avx2;
#endif
    default: return moments_portable;
  }
}

ChannelMoments channel_moments(const torch::Tensor& input) {
  static const MomentsKernel kernel = moments_kernel(instruction_set());
  const std::int64_t samples = input.size(0), channels = input.size(1);
  const std::int64_t length = input.numel() / (samples * channels);
  ChannelMoments found{torch::empty({channels}, input.options()), torch::empty({channels}, input.options())};
  const auto* const values = input.const_data_ptr<float>();
  auto* const means = found.mean.mutable_data_ptr<float>();
  auto* const vars = found.var.mutable_data_ptr<float>();
  at::parallel_for(0, channels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      const Moments moments = kernel({values + c * length, samples, channels * length, length});
      means[c] = static_cast<float>(moments.mean);
      vars[c] = static_cast<float>(moments.squares / static_cast<double>(samples * length));
    }
  });
  return found;
}

}  // namespace lockstep::nn_detail
