#include "c10d/backend/future_completer.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "lockstep/base/mutex.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {
namespace {

constexpr std::chrono::microseconds kShortestPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};

thread_local bool runs_callbacks = false;

}  // namespace

class FutureCompleter::Queue : public std::enable_shared_from_this<Queue> {
 public:
  bool add(GroupWorkPtr work) LOCKSTEP_EXCLUDES(mutex_);
  void begin_stop() LOCKSTEP_EXCLUDES(mutex_);
  // One of the threads; not joinable when there is none left.
  std::jthread take_thread() LOCKSTEP_EXCLUDES(mutex_);
  // Detaches the threads: nobody will wait for them.
  void let_threads_go() LOCKSTEP_EXCLUDES(mutex_);

 private:
  void run();
  // Blocks until this thread has found a work that is over; null when no more will come.
  GroupWorkPtr next() LOCKSTEP_EXCLUDES(mutex_);
  // Blocks until there are works and nobody leads; false when no more works will come.
  bool take_lead() LOCKSTEP_EXCLUDES(mutex_);
  void leave_lead(const GroupWorkPtr& found) LOCKSTEP_EXCLUDES(mutex_);
  GroupWorkPtr find_settled(const std::vector<GroupWorkPtr>& works, bool stopping) const;
  // Makes sure that a thread takes the lead. An error when all threads are inside callbacks and the system refuses
  // another.
  Status call_a_leader() LOCKSTEP_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::vector<GroupWorkPtr> works_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::jthread> threads_ LOCKSTEP_GUARDED_BY(mutex_);
  int idle_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // threads that wait for the lead
  bool led_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool let_go_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

bool FutureCompleter::Queue::add(GroupWorkPtr work) {
  MutexLock lock(mutex_);
  if (stop_) return false;
  works_.push_back(std::move(work));
  const Status called = call_a_leader();
  // Without a new thread, a busy one takes the lead later, if there is any.
  if (called.ok() || !threads_.empty()) return true;
  works_.pop_back();
  throw BackendError(called.code(), called.message());
}

Status FutureCompleter::Queue::call_a_leader() {
  changed_.notify_all();
  if (led_ || idle_ > 0) return {};
  LOCKSTEP_ASSIGN_OR_RETURN(std::jthread thread, start_thread("the futures of a process group",
                                                              [self = shared_from_this()] { self->run(); }));
  let_go_ ? thread.detach() : threads_.push_back(std::move(thread));
  return {};
}

void FutureCompleter::Queue::begin_stop() {
  MutexLock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

std::jthread FutureCompleter::Queue::take_thread() {
  MutexLock lock(mutex_);
  std::jthread thread;
  if (!threads_.empty()) {
    thread = std::move(threads_.back());
    threads_.pop_back();
  }
  return thread;
}

void FutureCompleter::Queue::let_threads_go() {
  MutexLock lock(mutex_);
  let_go_ = true;
  for (std::jthread& thread : threads_) thread.detach();
  threads_.clear();
}

void FutureCompleter::Queue::run() {
  runs_callbacks = true;
  while (const GroupWorkPtr work = next()) work->complete_future();
}

bool FutureCompleter::Queue::take_lead() {
  MutexLock lock(mutex_);
  while (led_ || works_.empty()) {
    if (stop_ && works_.empty()) return false;
    ++idle_;
    changed_.wait(mutex_);
    --idle_;
  }
  led_ = true;
  return true;
}

void FutureCompleter::Queue::leave_lead(const GroupWorkPtr& found) {
  MutexLock lock(mutex_);
  std::erase(works_, found);
  led_ = false;
  if (works_.empty()) {
    if (stop_) changed_.notify_all();
    return;
  }
  // If no thread can be started, this one takes the lead again after its callbacks.
  static_cast<void>(call_a_leader());
}

GroupWorkPtr FutureCompleter::Queue::next() {
  if (!take_lead()) return nullptr;
  std::chrono::microseconds pause = kShortestPause;
  for (;;) {
    std::vector<GroupWorkPtr> works;
    bool stopping = false;
    {
      MutexLock lock(mutex_);
      works = works_;
      stopping = stop_;
    }
    if (GroupWorkPtr found = find_settled(works, stopping)) {
      leave_lead(found);
      return found;
    }
    MutexLock lock(mutex_);
    const bool changed = works_.size() > works.size() || stop_ != stopping;
    if (!changed) changed_.wait_until(mutex_, std::chrono::steady_clock::now() + pause);
    pause = changed ? kShortestPause : std::min(2 * pause, kLongestPause);
  }
}

GroupWorkPtr FutureCompleter::Queue::find_settled(const std::vector<GroupWorkPtr>& works, bool stopping) const {
  for (const GroupWorkPtr& work : works) {
    if (stopping) work->give_up();
    if (work->test()) return work;
  }
  return nullptr;
}

FutureCompleter::FutureCompleter() : queue_(std::make_shared<Queue>()) {}

FutureCompleter::~FutureCompleter() {
  stop();
}

bool FutureCompleter::add(GroupWorkPtr work) {
  return queue_->add(std::move(work));
}

void FutureCompleter::begin_stop() {
  queue_->begin_stop();
}

void FutureCompleter::stop() {
  queue_->begin_stop();
  if (runs_callbacks) return queue_->let_threads_go();
  // A thread that ends may have started another one.
  for (std::jthread thread = queue_->take_thread(); thread.joinable(); thread = queue_->take_thread()) thread.join();
}

}  // namespace lockstep
