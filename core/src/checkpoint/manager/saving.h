// A save that a thread makes.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

// In a fork its thread is not there, and its results never come. The last owner waits for the thread.
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
