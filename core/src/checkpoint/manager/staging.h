// The copies of a state's tensors that an asynchronous save writes.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

using Tensors = std::map<std::string, torch::Tensor>;

// A copy that is to be made.
struct PendingCopy {
  std::string name;
  torch::Tensor from;
  torch::Tensor to;
  std::uint32_t version;  // of `from`, which in-place operations raise
};

struct Staged {
  Tensors tensors;
  std::vector<PendingCopy> pending;  // tensors of these have no values before copy_pending()
};

// Copies `tensors`, into the memory of `kept` where it fits: fresh memory costs more than copying. `kept` becomes the
// new copies, so nothing may use the former any more.
// overlap: parameters and the optimizer's tensors are left pending. Buffers, which a forward pass changes, and tensors
// on devices, whose streams only the caller knows, are not.
Staged stage(const Tensors& tensors, Tensors& kept, bool overlap, const std::string& origin);

// Makes the copies, in any thread. Throws CheckpointError (kInvalidArgument) when it sees that a tensor has changed
// since stage(). It sees in-place operations, but none through data(), by which LibTorch's optimizers change
// parameters.
void copy_pending(const std::vector<PendingCopy>& pending, const std::string& origin);

}  // namespace lockstep::checkpoint
