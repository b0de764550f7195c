// A loop over numbers, in several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "lockstep/base/thread.h"

namespace lockstep::data {

// Calls body(i) for each of begin..end-1, and returns when all are done. `body` must not throw.
template <typename Body>
void in_parallel(std::int64_t begin, std::int64_t end, int threads, const Body& body) {
  std::atomic<std::int64_t> next{begin};
  const auto work = [&] {
    for (std::int64_t i = next++; i < end; i = next++) body(i);
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) {
    Result<std::jthread> other = start_thread("pictures", work);
    if (!other.ok()) break;  // the existing threads do the work, or this one alone
    others.push_back(std::move(other).value());
  }
  work();
}

// `wanted`, or if it is 0 one for each core.
inline int thread_count(int wanted) {
  return wanted > 0 ? wanted : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace lockstep::data
