#include "freed_memory.h"

#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace lockstep::nn_detail {

void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kKept = 512 << 20;
  constexpr int kMostInHeaps = 32 << 20;  // the most that older releases take
  constexpr int kHeap = 64 << 20;
  // Not from Environment: glibc takes a variable without a value as set.
  static const bool once = [] {
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) mallopt(M_TRIM_THRESHOLD, kKept);
    if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr && mallopt(M_MMAP_THRESHOLD, kKept) == 0)
      mallopt(M_MMAP_THRESHOLD, kMostInHeaps);
    // An empty heap goes only if that leaves more than this free in the one before it.
    if (std::getenv("MALLOC_TOP_PAD_") == nullptr) mallopt(M_TOP_PAD, kHeap);
    return true;
  }();
  static_cast<void>(once);
#endif
}

}  // namespace lockstep::nn_detail
