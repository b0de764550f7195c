// Stores in forks of the process that made them.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/store/file_store.h"
#include "lockstep/store/rendezvous.h"
#include "lockstep/store/tcp_store.h"
#include "store/deadlines.h"
#include "support/forked.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<TcpStore> connect(const TcpStoreServer& server) {
  TcpStoreOptions options;
  options.server = server.endpoint();
  return TcpStore::connect(std::move(options), soon()).value();
}

TEST(StoreForks, TheParentsServerServesOn) {
  auto server = TcpStoreServer::start({}).value();
  auto store = connect(*server);
  ASSERT_TRUE(store->set("before", "1").ok());
  EXPECT_EQ(test::in_fork([&] {
              if (store->set("from the fork", "1").code() != ErrorCode::kUnsupported) return 1;
              if (!server->wait_until_idle(Deadline::never()) || server->num_clients() != 0) return 2;
              if (!connect(*server)->set("by a connection of its own", "1").ok()) return 3;
              store->close();
              store.reset();
              server.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(store->get("before", soon()).value(), "1");
  EXPECT_EQ(store->get("by a connection of its own", soon()).value(), "1");
  EXPECT_EQ(store->num_keys().value(), 2);
  EXPECT_EQ(test::in_fork([&]() -> int { std::exit(5); }), 5);
  EXPECT_TRUE(store->set("after", "2").ok());
}

// The other threads often hold locks that a connection needs. Takes 1 s.
TEST(StoreForks, ForksOfABusyServersProcessConnect) {
  auto server = TcpStoreServer::start({}).value();
  std::atomic<bool> stop{false};
  std::vector<std::jthread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      while (!stop) EXPECT_TRUE(connect(*server)->set("busy", "1").ok());
    });
  }
  for (int round = 0; round < 40; ++round) {
    std::array<pid_t, 5> children{};
    for (pid_t& child : children) {
      child = test::fork_to([&] { return connect(*server)->set("by a fork", "1").ok() ? 0 : 1; });
    }
    for (const pid_t child : children) EXPECT_EQ(test::end_of(child), 0);
    if (testing::Test::HasFailure()) break;
  }
  stop = true;
}

// The descriptors that a fork inherits keep neither the port nor the connections alive.
TEST(StoreForks, TheParentsEndIsSeenWhileItsForkLives) {
  auto server = TcpStoreServer::start({}).value();
  const Endpoint endpoint = server->endpoint();
  auto store = connect(*server);
  const auto other = connect(*server);
  const pid_t child = test::fork_to([] {
    pause();
    return 0;
  });
  store.reset();
  EXPECT_TRUE(test::wait_for([&] { return server->num_clients() == 1; }));
  server.reset();
  EXPECT_EQ(other->get("never", soon()).status().code(), ErrorCode::kUnavailable);
  TcpStoreServerOptions again;
  again.listen_at = endpoint;
  EXPECT_TRUE(TcpStoreServer::start(std::move(again)).ok());
  kill(child, SIGKILL);
  test::end_of(child);
}

TEST(StoreForks, TheParentsFileStays) {
  const test::ScratchFolder scratch;
  auto store = FileStore::open(scratch.path("store")).value();
  ASSERT_TRUE(store->set("before", "1").ok());
  EXPECT_EQ(test::in_fork([&] {
              if (store->set("from the fork", "1").code() != ErrorCode::kUnsupported) return 1;
              if (store->get("before", soon()).status().code() != ErrorCode::kUnsupported) return 2;
              store.reset();
              auto own = FileStore::open(scratch.path("store"));
              return own.ok() && own.value()->get("before", soon()).value() == "1" ? 0 : 3;
            }),
            0);
  EXPECT_TRUE(std::filesystem::exists(scratch.path("store")));
  EXPECT_EQ(store->get("before", soon()).value(), "1");
  store.reset();
  EXPECT_FALSE(std::filesystem::exists(scratch.path("store")));
}

TEST(StoreForks, AForkCannotLeaveForItsParent) {
  RendezvousOptions options;
  options.init_method = "tcp://127.0.0.1:0";
  options.rank = 0;
  options.world_size = 1;
  auto server = TcpStoreServer::start({}).value();
  auto met = rendezvous(options, connect(*server));
  ASSERT_TRUE(met.ok()) << met.status().message();
  EXPECT_EQ(test::in_fork([&] { return met->release(5s).ok() ? 1 : 0; }), 0);
  EXPECT_TRUE(met->store->set("still", "here").ok());
  EXPECT_TRUE(met->release(5s).ok());
}

}  // namespace
}  // namespace lockstep::comm
