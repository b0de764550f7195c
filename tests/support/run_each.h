#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace lockstep::test {

// fn(0) to fn(count - 1), each on a thread of its own.
inline void run_each(int count, const std::function<void(int)>& fn) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (int i = 0; i < count; ++i) threads.emplace_back([&fn, i] { fn(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::test
