// Mean and squares of one channel: the same code (moments_kernels.inl) compiled once for each instruction set. All give
// the same bits.
//
// This header has only declarations and plain data; reduce/reduce_kernels.h says why.
#pragma once

#include <cstdint>

namespace lockstep::nn_detail {

// The values of a channel: a plane of `length` values for each sample, `stride` values apart.
struct ChannelPlanes {
  const float* first;
  std::int64_t samples;
  std::int64_t stride;
  std::int64_t length;
};

struct Moments {
  double mean;
  double squares;  // the sum of the squares of (value - mean)
};

using MomentsKernel = Moments (*)(const ChannelPlanes& planes);
Moments moments_portable(const ChannelPlanes& planes);
Moments moments_avx2(const ChannelPlanes& planes);
Moments moments_avx512(const ChannelPlanes& planes);

}  // namespace lockstep::nn_detail
