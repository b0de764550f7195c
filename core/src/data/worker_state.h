// What a loader knows of the thread of one of its workers.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/data/worker_info.h"

namespace lockstep::data {

struct WorkerState {
  WorkerInfo info;
  std::atomic<std::int64_t> sample{kNoSample};  // the last note_sample() since the worker began its batch

  static constexpr std::int64_t kNoSample = -1;
};

// Of the present thread; null in threads that are no workers. The worker sets it.
WorkerState*& this_worker();

}  // namespace lockstep::data
