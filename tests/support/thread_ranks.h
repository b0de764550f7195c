// Runs ranks as threads of this process, over a store in memory: the fastest way to run many ranks, and the best for a
// debugger and TSan. Tests of processes (death, exit, other address spaces) use process_ranks.h instead.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/engine/communicator.h"
#include "lockstep/store/hash_store.h"
#include "support/run_each.h"

namespace lockstep::test {

// Joins a group. If that fails, the current test fails and the result is null.
inline std::unique_ptr<comm::Communicator> join(const std::shared_ptr<comm::Store>& store, int rank, int world,
                                                std::shared_ptr<comm::SharedArena> arena = nullptr,
                                                const std::string& name = "world",
                                                std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  comm::CommunicatorOptions options;
  options.rank = rank;
  options.group_size = world;
  options.name = name;
  options.timeout = timeout;
  options.arena = std::move(arena);
  auto communicator = comm::Communicator::create(store, options);
  EXPECT_TRUE(communicator.ok()) << communicator.status().message();
  return communicator.ok() ? std::move(communicator).value() : nullptr;
}

inline void run_threads(int world, const std::function<void(comm::Communicator&)>& fn,
                        std::chrono::seconds timeout = std::chrono::seconds(30)) {
  auto store = std::make_shared<comm::HashStore>();
  run_each(world, [&](int rank) {
    const auto communicator = join(store, rank, world, nullptr, "world", timeout);
    if (communicator) fn(*communicator);
  });
}

// The same with each rank on its machine, by rank: threads that are told not to share memory with those of other
// machines, and talk to them through the loopback interface. core/tests/hosts has machines of their own.
inline void run_machines(const std::vector<int>& machine_of, const std::function<void(comm::Communicator&)>& fn,
                         std::chrono::seconds timeout = std::chrono::seconds(30)) {
  auto store = std::make_shared<comm::HashStore>();
  const int world = static_cast<int>(machine_of.size());
  run_each(world, [&](int rank) {
    comm::CommunicatorOptions options;
    options.rank = rank;
    options.group_size = world;
    options.timeout = timeout;
    options.machine = "machine" + std::to_string(machine_of[rank]);
    auto group = comm::Communicator::create(store, options);
    ASSERT_TRUE(group.ok()) << group.status().message();
    fn(*group.value());
  });
}

// One thread opens it; the others wait until then.
class Meeting {
 public:
  void open() { opened_.set_value(); }
  void wait() const { open_.wait(); }

 private:
  std::promise<void> opened_;
  std::shared_future<void> open_ = opened_.get_future().share();
};

}  // namespace lockstep::test
