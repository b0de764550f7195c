#include "c10d/future_completer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <vector>

#include "c10d/lockstep_work.h"
#include "lockstep/base/mutex.h"

namespace lockstep {
namespace {

constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};

}  // namespace

class FutureCompleter::Queue {
 public:
  // False after stop().
  bool add(const c10::intrusive_ptr<LockstepWork>& work) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (stop_) return false;
    added_.push_back(work);
    changed_.notify_all();
    return true;
  }

  void stop() LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }

  void run() LOCKSTEP_EXCLUDES(mutex_) {
    Works works;
    std::chrono::microseconds pause = kShortestPause;
    while (take_new(works, pause)) {
      const std::size_t before = works.size();
      std::erase_if(works, [](const auto& work) { return work->isCompleted(); });
      pause = works.size() < before ? kShortestPause : std::min(2 * pause, kLongestPause);
    }
    for (const auto& work : works) work->give_up();
  }

 private:
  using Works = std::vector<c10::intrusive_ptr<LockstepWork>>;

  // Adds new works to `works`; waits for some when there is nothing to do, else for `pause`. False: stop.
  bool take_new(Works& works, std::chrono::microseconds pause) LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + pause;
    while (!stop_ && added_.empty()) {
      if (works.empty()) {
        changed_.wait(mutex_);
      } else if (!changed_.wait_until(mutex_, until)) {
        break;
      }
    }
    std::move(added_.begin(), added_.end(), std::back_inserter(works));
    added_.clear();
    return !stop_;
  }

  Mutex mutex_;
  CondVar changed_;
  Works added_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

FutureCompleter::FutureCompleter() : queue_(std::make_shared<Queue>()), thread_([queue = queue_] { queue->run(); }) {}

FutureCompleter::~FutureCompleter() {
  stop();
}

void FutureCompleter::add(c10::intrusive_ptr<LockstepWork> work) {
  if (!queue_->add(work)) work->give_up();
}

void FutureCompleter::stop() {
  queue_->stop();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace lockstep
