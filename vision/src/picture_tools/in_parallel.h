// A loop over numbers, in several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread.h"

namespace lockstep::data {

// Calls body(i) for each of begin..end-1, and returns when all are done. After an exception no further i is begun; the
// caller gets the first exception when all threads have ended.
template <typename Body>
void in_parallel(std::int64_t begin, std::int64_t end, int threads, const Body& body) {
  std::atomic<std::int64_t> next{begin};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  const auto work = [&]() noexcept {
    try {
      for (std::int64_t i = next++; i < end && !failed; i = next++) body(i);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) {
      Result<std::jthread> other = start_thread("pictures", work);
      if (!other.ok()) break;  // the existing threads do the work, or this one alone
      others.push_back(std::move(other).value());
    }
    work();
  }
  if (error) std::rethrow_exception(error);
}

// `wanted`, or if it is 0 one for each core.
inline int thread_count(int wanted) {
  return wanted > 0 ? wanted : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace lockstep::data
