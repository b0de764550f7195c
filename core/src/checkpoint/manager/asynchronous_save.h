// What an asynchronous save needs: copies of the state's tensors, and the thread that writes them.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"

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

// A save that a thread makes. In a fork its thread is not there, and its results never come. The last owner waits for
// the thread.
struct Saving {
  Origin origin;
  std::future<void> copied;
  std::shared_future<void> result;
  std::atomic<bool> reported = false;  // whether somebody has taken on the error of `result`
  std::jthread thread;
};

// Runs `work` in a thread. exit() waits for it and logs its error, because a manager may be a local variable of main(),
// which exit() does not destroy, or a static one, which is destroyed when much of what a save uses is gone.
Result<std::shared_ptr<Saving>> start_saving(std::function<void()> work, std::future<void> copied);

}  // namespace lockstep::checkpoint
