// Lists, wills and sessions of the TCP store: what launchers of several nodes are built on.
#include "store/tcp/session.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <set>
#include <thread>
#include <vector>

#include "base/poll.h"
#include "store/deadlines.h"
#include "support/held_port.h"

namespace lockstep::comm {
namespace {

struct Served {
  std::unique_ptr<TcpStoreServer> server = TcpStoreServer::start({}).value();
  std::shared_ptr<TcpStore> store = TcpStore::connect({.server = server->endpoint()}, soon()).value();
  StoreSession session() const { return StoreSession::connect({.server = server->endpoint()}, soon(), -1).value(); }
};

// Waits for what the session has asked for.
std::string next(StoreSession& session) {
  while (true) {
    const auto value = session.take();
    EXPECT_TRUE(value.ok()) << value.status().message();
    if (!value.ok()) return {};
    if (value.value()) return *value.value();
    EXPECT_TRUE(poll_until(session.fd(), POLLIN, soon()).value());
  }
}

TEST(StoreSession, PushedValuesHaveNumbersWithoutGaps) {
  const Served served;
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&] {
      const auto own = TcpStore::connect({.server = served.server->endpoint()}, soon()).value();
      for (int i = 0; i < 25; ++i) EXPECT_TRUE(own->push("list", std::to_string(i)).ok());
    });
  }
  for (auto& client : clients) client.join();
  for (int number = 1; number <= 100; ++number) {
    EXPECT_TRUE(served.store->get("list/" + std::to_string(number), soon()).ok()) << number;
  }
  EXPECT_EQ(served.store->push("list", "last").value(), 101);
}

TEST(StoreSession, AKeyIsAwaitedWithoutBlocking) {
  const Served served;
  StoreSession session = served.session();
  ASSERT_TRUE(session.ask("key").ok());
  EXPECT_FALSE(session.take().value().has_value());
  ASSERT_TRUE(served.store->set("key", std::string(100'000, 'x')).ok());
  EXPECT_EQ(next(session).size(), 100'000U);
  ASSERT_TRUE(session.ask("key").ok());
  EXPECT_EQ(next(session).size(), 100'000U);
}

TEST(StoreSession, TheWillIsCarriedOutOnce) {
  const Served served;
  StoreSession witness = served.session();
  ASSERT_TRUE(witness.ask("events/1").ok());
  {
    StoreSession session = served.session();
    ASSERT_TRUE(session.leave_will("events", "first wish", std::chrono::seconds(3)).ok());
    ASSERT_TRUE(session.leave_will("events", "gone", std::chrono::seconds(3)).ok());
    ASSERT_TRUE(session.ask("never").ok());
    EXPECT_FALSE(witness.take().value().has_value());
  }
  EXPECT_EQ(next(witness), "gone");
  EXPECT_EQ(served.store->push("events", "x").value(), 2);
}

TEST(StoreSession, AWillCanBeWithdrawn) {
  const Served served;
  {
    StoreSession session = served.session();
    ASSERT_TRUE(session.leave_will("events", "gone", std::chrono::seconds(3)).ok());
    ASSERT_TRUE(session.leave_will({}, {}, std::chrono::seconds(3)).ok());
  }
  while (served.server->num_clients() > 1) std::this_thread::yield();
  EXPECT_EQ(served.store->num_keys().value(), 0);
}

TEST(StoreSession, AnotherKeyEndsAWait) {
  const Served served;
  const auto await = [&](StoreCall::Op op, std::vector<std::string> keys) {
    return served.store->ask({.op = op, .keys = std::move(keys), .deadline = soon(), .unless = "alarm"});
  };
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(served.store->set("first", "1").ok());
    EXPECT_TRUE(served.store->set("alarm", "1").ok());
  });
  EXPECT_EQ(await(StoreCall::Op::kGet, {"first", "second"}).status().code(), ErrorCode::kAborted);
  setter.join();
  EXPECT_EQ(await(StoreCall::Op::kWait, {"second"}).status().code(), ErrorCode::kAborted);
  EXPECT_EQ(await(StoreCall::Op::kGet, {"first"}).value().values, std::vector<Bytes>{"1"}) << "a key that is there";
}

TEST(StoreSession, KeysAreDeletedByTheirPrefix) {
  const Served served;
  for (const char* const key : {"a", "a/", "a/1", "a/2/x", "a0", "b"}) ASSERT_TRUE(served.store->set(key, "1").ok());
  EXPECT_EQ(served.store->delete_prefix("a/").value(), 3);
  EXPECT_EQ(served.store->delete_prefix("a/").value(), 0);
  EXPECT_EQ(served.store->num_keys().value(), 3);
}

TEST(StoreSession, TheEndOfTheServerIsNoticed) {
  auto served = std::make_unique<Served>();
  StoreSession session = served->session();
  ASSERT_TRUE(session.ask("never").ok());
  served.reset();
  ASSERT_TRUE(poll_until(session.fd(), POLLIN, soon()).value());
  EXPECT_EQ(session.take().status().code(), ErrorCode::kUnavailable);
}

TEST(StoreSession, TryingToConnectCanBeInterrupted) {
  const test::HeldPort nobody;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd reader(ends[0]);
  Fd writer(ends[1]);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    writer.reset();
  });
  const auto session = StoreSession::connect({.server = {"127.0.0.1", nobody.number()}}, soon(), reader.get());
  later.join();
  EXPECT_EQ(session.status().code(), ErrorCode::kAborted);
}

}  // namespace
}  // namespace lockstep::comm
