// Flags in a peer's arena that tell the peer that its memory is free again.
#pragma once

#include <atomic>

namespace lockstep::comm {

#ifdef __SANITIZE_THREAD__
// The peer learns of the store through a mapping of its own, which is other memory to TSan. It then uses this memory
// for something else, which another thread of this rank reads. TSan would take that for a race, so the store is hidden.
#ifdef __clang__  // instruments atomics even where no_sanitize says otherwise
#define LOCKSTEP_HIDDEN_FROM_TSAN __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define LOCKSTEP_HIDDEN_FROM_TSAN __attribute__((no_sanitize("thread"), noinline))
#endif
template <typename Integer>
LOCKSTEP_HIDDEN_FROM_TSAN void set_peer_flag(std::atomic<Integer>& flag, Integer value, std::memory_order /*order*/) {
  __atomic_store_n(reinterpret_cast<Integer*>(&flag), value, __ATOMIC_SEQ_CST);
}
#else
template <typename Integer>
void set_peer_flag(std::atomic<Integer>& flag, Integer value, std::memory_order order) {
  flag.store(value, order);
}
#endif

}  // namespace lockstep::comm
