// PowerSGD: gradients are sent as products of two narrow matrices. For many parameters and a slow network.
//
//   ddp.register_comm_hook(lockstep::make_power_sgd_hook({.matrix_approximation_rank = 2}));
//
// From T. Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (2019).
// Options and results are those of torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.
//
// A gradient [n, ...] counts as a matrix M of n rows and m columns. In each pass, with r the approximation rank:
//   1. M += what was lost in the last pass (error feedback)
//   2. P = M Q; the ranks add up P, then its columns are made orthonormal
//   3. Q = M^T P; the ranks average Q
//   4. the gradient is P Q^T, and M - P Q^T is what was lost
// A rank sends (n + m) r numbers instead of n m. If this saves too little, as always for vectors, the gradient is
// averaged as it is, in one message per bucket with other such gradients.
//
// Memory: a copy of the gradients for error feedback, another one during a pass, and P and Q.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/nn/comm_hook.h"

namespace lockstep {

struct PowerSgdOptions {
  // Columns of P and Q. Larger: better gradients, more bytes. Try 1, 2, 4. Above 2, a QR decomposition makes the
  // columns orthonormal, which costs more.
  std::int64_t matrix_approximation_rank = 1;
  // The number of first passes that send whole gradients: the beginning of training suffers most from inexact
  // gradients. PyTorch recommends a tenth of all steps, and its own wrapper needs at least 2; here 0 works too.
  std::int64_t start_power_sgd_iter = 1000;
  // A gradient is compressed if (n + m) r times this is less than n m.
  double min_compression_rate = 2;
  // Error feedback. Off: the lost part is not added later, and training may not converge.
  bool use_error_feedback = true;
  // On: each pass starts from the last Q. Off: from random numbers, the same on all ranks.
  bool warm_start = true;
  // Added to a column's length before dividing by it. With 0 a column of zeros stays zero (PyTorch: it becomes NaN).
  double orthogonalization_epsilon = 0;
  // The seed of the random Q at the start.
  std::uint32_t random_seed = 0;
  // On: matrices of one shape in a bucket are computed together: fewer, larger multiplications for more memory.
  bool batch_tensors_with_same_shape = false;
  ProcessGroup group = nullptr;  // null: the wrapper's group
};

// Compresses each parameter's gradient by itself.
std::shared_ptr<CommHook> make_power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace lockstep
