// Runs ranks as threads of this process, over a store in memory: the quickest way to see many ranks, and what a debugger and TSan
// follow best. What depends on processes (death, exit, other address spaces) is tested with process_ranks.h instead.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/comm/collective/communicator.h"
#include "lockstep/comm/store/hash_store.h"

namespace lockstep::test {

inline void run_threads(int world, const std::function<void(comm::Communicator&)>& fn,
                        std::chrono::seconds timeout = std::chrono::seconds(30)) {
  auto store = std::make_shared<comm::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      comm::CommunicatorOptions options;
      options.rank = rank;
      options.world_size = world;
      options.timeout = timeout;
      auto communicator = comm::Communicator::create(store, options);
      ASSERT_TRUE(communicator.ok()) << communicator.status().message();
      fn(**communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::test
