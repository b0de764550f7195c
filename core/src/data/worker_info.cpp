#include "lockstep/data/worker_info.h"

#include "worker_state.h"

namespace lockstep::data {

WorkerState*& this_worker() {
  thread_local WorkerState* state = nullptr;
  return state;
}

std::optional<WorkerInfo> get_worker_info() {
  const WorkerState* state = this_worker();
  if (state == nullptr) return std::nullopt;
  return state->info;
}

void note_sample(std::int64_t key) {
  if (WorkerState* state = this_worker()) state->sample.store(key, std::memory_order_relaxed);
}

}  // namespace lockstep::data
