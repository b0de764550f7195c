// What an asynchronous save needs: copies of the state's tensors, and the thread that writes them.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

using Tensors = std::map<std::string, torch::Tensor>;

// Copies `tensors`, into the memory of `kept` where it fits: fresh memory costs more than copying. `kept` becomes the
// new copies, so nothing may use the former any more.
Tensors stage(const Tensors& tensors, Tensors& kept, const std::string& origin);

// A save that a thread makes. In a fork its thread is not there, and its results never come. The last owner waits for
// the thread.
struct Saving {
  Origin origin;
  std::shared_future<void> result;
  std::atomic<bool> reported = false;  // whether somebody has taken on the error of `result`
  std::jthread thread;
};

// Runs `work` in a thread. exit() waits for it and logs its error, because a manager may be a local variable of main(),
// which exit() does not destroy, or a static one, which is destroyed when much of what a save uses is gone.
Result<std::shared_ptr<Saving>> start_saving(std::function<void()> work);

}  // namespace lockstep::checkpoint
