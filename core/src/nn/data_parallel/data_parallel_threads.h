// The threads of DataParallel: one for each replica, for as long as the replicas live, so that a replica's memory stays
// with the cores that use it.
#pragma once

#include <torch/types.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"

namespace lockstep::nn_detail {

// Where a replica runs.
struct ReplicaPlace {
  torch::Device device;
  std::string name;             // for messages: "cpu:1", "cuda:1"
  std::vector<int> cores = {};  // its thread and the threads that this one starts are bound to them; empty: not bound
  int intra_op_threads = 0;     // 0: LibTorch's default
};

class ReplicaThreads {
 public:
  // Throws c10::Error if the system refuses a thread; those that run already have ended then.
  explicit ReplicaThreads(std::vector<ReplicaPlace> places);
  // Ends and joins the threads. Not to be called by one of them.
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  std::size_t size() const { return places_.size(); }
  const ReplicaPlace& place(std::size_t index) const { return places_[index]; }

  using Task = std::function<void(std::size_t index)>;
  // Runs task(0) .. task(count - 1), each in the thread of its replica with its device, and returns when all have
  // ended. Tasks get the caller's modes: gradients, inference, autocast, current streams. Rethrows the exception of the
  // first replica that failed, with the replica's name. `here`: this task runs in the caller's thread instead.
  // Thread-safe; runs of several callers wait for one another.
  void run(std::size_t count, const Task& task, std::optional<std::size_t> here = std::nullopt);

 private:
  struct Worker {
    const std::function<void()>* job = nullptr;
    bool ready = false;  // it has bound itself to its cores
    CondVar wake;
    std::jthread thread;
  };
  void start(std::size_t index);
  void prepare(std::size_t index) const;
  void work(std::size_t index);
  void stop();

  const std::vector<ReplicaPlace> places_;
  const Origin origin_;
  Mutex calls_;  // one run at a time
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Worker>> workers_;         // their `job` and `ready` are guarded by mutex_
  std::size_t running_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // jobs of workers that have not ended
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

// Ends the OpenMP threads that the calling thread has started for its operators; its next large operator starts them
// again, which takes some 50 us a thread. A caller that is about to wait for threads of its own needs this: after an
// operator the threads of libgomp look for new work for some milliseconds before they sleep, and meanwhile take the
// cores from the caller's threads. Does nothing where the process has no OpenMP, or within an operator.
void end_openmp_threads();

}  // namespace lockstep::nn_detail
