#include "c10d/future_completer.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "c10d/lockstep_work.h"

namespace lockstep {
namespace {

constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};

}  // namespace

FutureCompleter::FutureCompleter() : thread_([this] { run(); }) {}

FutureCompleter::~FutureCompleter() {
  stop();
}

void FutureCompleter::add(c10::intrusive_ptr<LockstepWork> work) {
  {
    MutexLock lock(mutex_);
    if (!stop_) {
      added_.push_back(std::move(work));
      changed_.notify_all();
      return;
    }
  }
  work->give_up();
}

void FutureCompleter::stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool FutureCompleter::take_new(Works& works, std::chrono::microseconds pause) {
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

void FutureCompleter::run() {
  Works works;
  std::chrono::microseconds pause = kShortestPause;
  while (take_new(works, pause)) {
    const std::size_t before = works.size();
    std::erase_if(works, [](const auto& work) { return work->isCompleted(); });
    pause = works.size() < before ? kShortestPause : std::min(2 * pause, kLongestPause);
  }
  for (const auto& work : works) work->give_up();
}

}  // namespace lockstep
