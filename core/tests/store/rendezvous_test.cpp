// Ranks that find one another, and the error of each when they do not. Ranks are threads here, each with an
// environment of its own; c10d/init_test.cpp runs processes.
#include "lockstep/store/rendezvous.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/tcp_store.h"
#include "store/membership/refuse_rendezvous.h"
#include "support/held_port.h"
#include "support/scratch_folder.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Variables = Environment::Variables;

std::unique_ptr<TcpStoreServer> store_server() {
  return TcpStoreServer::start({}).value();
}

std::string text(const test::HeldPort& port) {
  return std::to_string(port.number());
}

// Listens and never sends anything.
class ForeignProgram {
 public:
  ForeignProgram() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (!socket_.valid()) throw std::runtime_error("cannot open a socket");
    EXPECT_EQ(::bind(socket_.get(), generic, size), 0);
    EXPECT_EQ(::listen(socket_.get(), 8), 0);
    EXPECT_EQ(::getsockname(socket_.get(), generic, &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  const std::string& address() const { return address_; }

 private:
  Fd socket_;
  std::string address_;
};

RendezvousOptions base_options(milliseconds timeout = seconds(20)) {
  RendezvousOptions options;
  options.timeout = timeout;
  options.environment = Environment();
  return options;
}

RendezvousOptions env_options(Variables variables, milliseconds timeout = seconds(20)) {
  auto options = base_options(timeout);
  options.environment = Environment(std::move(variables));
  return options;
}

// Runs one rendezvous per options at the same time. Each rank that succeeds stays until all have a result.
std::vector<Status> meet(const std::vector<RendezvousOptions>& ranks, std::shared_ptr<Store> store = nullptr) {
  std::vector<std::future<Result<Rendezvous>>> running;
  for (const auto& options : ranks) {
    running.push_back(std::async(std::launch::async,
                                 [&] { return store == nullptr ? rendezvous(options) : rendezvous(options, store); }));
  }
  std::vector<Status> statuses;
  std::vector<Rendezvous> members;
  for (auto& one : running) {
    auto result = one.get();
    statuses.push_back(result.status());
    if (result.ok()) members.push_back(std::move(result).value());
  }
  std::reverse(members.begin(), members.end());  // the rank that serves, usually the first, leaves last
  for (auto& member : members) EXPECT_TRUE(member.release().ok());
  return statuses;
}

void expect_all(const std::vector<Status>& statuses, ErrorCode code, const std::vector<std::string>& mentions) {
  for (const auto& status : statuses) {
    EXPECT_EQ(status.code(), code) << status.message();
    for (const auto& mention : mentions) {
      EXPECT_NE(status.message().find(mention), std::string::npos) << mention << " in: " << status.message();
    }
  }
}

std::string pid() {
  return "pid " + std::to_string(::getpid());
}

RendezvousOptions numbered(RendezvousOptions options, int rank, int world_size) {
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

TEST(Rendezvous, EnvironmentWithRankZeroAsHost) {
  const test::HeldPort held;
  const std::string port = text(held);
  std::vector<RendezvousOptions> ranks;
  for (const auto* rank : {"0", "1", "2"}) {
    ranks.push_back(
        env_options({{"RANK", rank}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}));
  }
  expect_all(meet(ranks), ErrorCode::kOk, {});
}

TEST(Rendezvous, EnvironmentWithTheLaunchersStore) {
  TcpStoreServerOptions options;
  options.job_key = "secret of the test";
  const auto server = TcpStoreServer::start(std::move(options)).value();
  std::vector<RendezvousOptions> ranks;
  for (const auto* rank : {"0", "1"}) {
    ranks.push_back(env_options({{"RANK", rank},
                                 {"WORLD_SIZE", "2"},
                                 {"LOCKSTEP_JOB_KEY", "secret of the test"},
                                 {"LOCKSTEP_STORE", server->endpoint().text()}}));
  }
  expect_all(meet(ranks), ErrorCode::kOk, {});
  // Again on the same store, and after a restart whose predecessors did not leave.
  expect_all(meet(ranks), ErrorCode::kOk, {});
  auto abandoned = std::async(std::launch::async, [&] { return rendezvous(ranks[1]).ok(); });
  EXPECT_TRUE(rendezvous(ranks[0]).ok());
  EXPECT_TRUE(abandoned.get());
  for (auto& rank : ranks) rank.environment.set("LOCKSTEP_RESTART_COUNT", "1");
  expect_all(meet(ranks), ErrorCode::kOk, {});
  EXPECT_TRUE(server->wait_until_idle(Deadline::after(seconds(20))));
}

TEST(Rendezvous, UrlWithTcp) {
  const test::HeldPort port;
  const std::string url = "tcp://127.0.0.1:" + text(port);
  auto server = base_options();
  server.init_method = url + "?rank=0&world_size=2";
  auto other = numbered(base_options(), 1, 2);
  other.init_method = url;
  expect_all(meet({server, other}), ErrorCode::kOk, {});
}

TEST(Rendezvous, UrlWithFileLeavesNothingBehind) {
  const test::ScratchFolder folder;
  std::vector<RendezvousOptions> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(numbered(base_options(), rank, 3));
    ranks.back().init_method = "file://" + folder.path("meeting");
  }
  expect_all(meet(ranks), ErrorCode::kOk, {});
  EXPECT_FALSE(std::filesystem::exists(folder.path("meeting")));
}

TEST(Rendezvous, GroupsOnOneStoreDoNotMeet) {
  auto store = std::make_shared<HashStore>();
  std::vector<RendezvousOptions> ranks;
  for (const auto* name : {"left", "the right secret"}) {
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(numbered(base_options(), rank, 2));
      ranks.back().group_name = name;
    }
  }
  expect_all(meet(ranks, store), ErrorCode::kOk, {});
  expect_all(meet(ranks, store), ErrorCode::kOk, {});
}

TEST(Rendezvous, TheStoreIsSharedByTheGroup) {
  auto store = std::make_shared<HashStore>();
  auto other =
      std::async(std::launch::async, [&] { return rendezvous(numbered(base_options(), 1, 2), store).value(); });
  auto mine = rendezvous(numbered(base_options(), 0, 2), store).value();
  ASSERT_TRUE(mine.store->set("key", "value").ok());
  EXPECT_EQ(other.get().store->get("key", Deadline::after(seconds(20))).value(), "value");
}

TEST(Rendezvous, AWorldOfOneNeedsNothing) {
  for (const auto& options : {env_options({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), numbered(base_options(), 0, 1)}) {
    auto alone = rendezvous(options);
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    EXPECT_EQ(alone->world_size, 1);
    EXPECT_TRUE(alone->store->set("key", "1").ok());
    EXPECT_TRUE(alone->release().ok());
  }
  auto url = numbered(base_options(), 0, 1);
  url.init_method = "tcp://192.0.2.1:1";  // nobody's address
  EXPECT_TRUE(rendezvous(url).ok());
}

TEST(RendezvousFault, ARankTwiceIsNamedOnEveryRank) {
  const auto server = store_server();
  const auto with_rank = [&](const std::string& rank) {
    return env_options({{"RANK", rank}, {"WORLD_SIZE", "3"}, {"LOCKSTEP_STORE", server->endpoint().text()}});
  };
  // Rank 2 is missing, so no rank succeeds before the second rank 1 comes.
  expect_all(meet({with_rank("0"), with_rank("1"), with_rank("1")}), ErrorCode::kMismatch,
             {"rank 1 joined twice", "on host ", pid()});
}

TEST(RendezvousFault, TheServingRankDoesNotOutlastItsTimeoutForARankThatNeverComes) {
  const test::HeldPort port;
  std::vector<RendezvousOptions> ranks;
  for (const int rank : {0, 1, 1}) {
    ranks.push_back(numbered(base_options(milliseconds(1500)), rank, 3));
    ranks.back().init_method = "tcp://127.0.0.1:" + text(port);
  }
  const auto start = std::chrono::steady_clock::now();
  expect_all(meet(ranks), ErrorCode::kMismatch, {"rank 1 joined twice"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(4500));
}

TEST(RendezvousFault, ASecondHostIsARankTwice) {
  std::vector<RendezvousOptions> ranks;
  for (const int rank : {0, 0, 1}) {
    ranks.push_back(numbered(base_options(), rank, 3));
    ranks.back().init_method = "tcp://127.0.0.1:";
  }
  const test::HeldPort held;
  const std::string port = text(held);
  for (auto& rank : ranks) rank.init_method += port;
  expect_all(meet(ranks), ErrorCode::kMismatch, {"rank 0 joined twice", pid()});
}

TEST(RendezvousFault, ALatecomerWithATakenRankHurtsNobody) {
  auto store = std::make_shared<HashStore>();
  auto other =
      std::async(std::launch::async, [&] { return rendezvous(numbered(base_options(), 1, 2), store).value(); });
  auto mine = rendezvous(numbered(base_options(), 0, 2), store).value();
  auto theirs = other.get();
  const auto late = rendezvous(numbered(base_options(), 1, 2), store);
  EXPECT_EQ(late.status().code(), ErrorCode::kMismatch);
  EXPECT_NE(late.status().message().find("rank 1 joined twice"), std::string::npos) << late.status().message();
  EXPECT_TRUE(mine.store->set("key", "1").ok());
  EXPECT_TRUE(mine.release().ok());
  EXPECT_TRUE(theirs.release().ok());
  expect_all(meet({numbered(base_options(), 0, 2), numbered(base_options(), 1, 2)}, store), ErrorCode::kOk, {});
}

TEST(RendezvousFault, WorldSizesThatDisagreeAreNamedOnEveryRank) {
  auto store = std::make_shared<HashStore>();
  expect_all(meet({numbered(base_options(), 0, 3), numbered(base_options(), 1, 4)}, store), ErrorCode::kMismatch,
             {"disagree about the group size", "rank 0 (host", "says 3", "rank 1 (host", "says 4"});
}

TEST(RendezvousFault, ARankOutsideItsWorldIsNamedOnEveryRank) {
  auto store = std::make_shared<HashStore>();
  expect_all(meet({numbered(base_options(), 0, 2), numbered(base_options(), 5, 2)}, store), ErrorCode::kMismatch,
             {"rank 5", "is outside the", "of 2: ranks go from 0 to 1"});
}

TEST(RendezvousFault, MissingRanksAreListedOnEveryRank) {
  std::vector<RendezvousOptions> ranks;
  const test::HeldPort held;
  const std::string port = text(held);
  for (const auto* rank : {"0", "2"}) {
    ranks.push_back(env_options(
        {{"RANK", rank}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}, seconds(5)));
  }
  expect_all(meet(ranks), ErrorCode::kTimeout,
             {"only 2 of 4 ranks", "rank 0 (host", "rank 2 (host", pid(), "Missing: rank 1, 3"});
}

TEST(RendezvousFault, APortTakenByAnotherJobIsNamed) {
  const auto another = store_server();
  auto options = numbered(base_options(milliseconds(300)), 0, 2);
  options.init_method = "tcp://" + another->endpoint().text();
  expect_all({rendezvous(options).status()}, ErrorCode::kUnavailable,
             {another->endpoint().text(), "in use", "choose another one"});
}

// Rank 0 cannot listen. To the others the other job's store looks like their own, but rank 0 never joins.
TEST(RendezvousFault, APortTakenByAnotherJobIsAnErrorOnEveryRank) {
  const auto another = store_server();
  std::vector<RendezvousOptions> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(numbered(base_options(seconds(2)), rank, 3));
    ranks.back().init_method = "tcp://" + another->endpoint().text();
  }
  const auto statuses = meet(ranks);
  expect_all({statuses[0]}, ErrorCode::kUnavailable, {"rank 0 of 3", another->endpoint().text(), "in use"});
  expect_all({statuses[1], statuses[2]}, ErrorCode::kTimeout, {"of 3", "Missing: rank 0"});
}

TEST(RendezvousFault, APortTakenByAForeignProgramIsNamedOnEveryRank) {
  const ForeignProgram foreign;
  const std::string& address = foreign.address();
  std::vector<RendezvousOptions> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(numbered(base_options(milliseconds(500)), rank, 2));
    ranks.back().init_method = "tcp://" + address;
  }
  const auto statuses = meet(ranks);
  expect_all({statuses[0]}, ErrorCode::kUnavailable, {"rank 0 of 2", address, "in use", "choose another one"});
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_NE(statuses[1].message().find(address), std::string::npos) << statuses[1].message();
}

TEST(RendezvousFault, AnUnreachableStoreIsNamedOnEveryRank) {
  std::vector<RendezvousOptions> ranks;
  const test::HeldPort port;
  const std::string address = "127.0.0.1:" + text(port);
  for (const auto* rank : {"0", "1"}) {
    ranks.push_back(env_options({{"RANK", rank}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", address}}, seconds(1)));
  }
  expect_all(meet(ranks), ErrorCode::kUnavailable, {"of 2", address, "attempts", "Connection refused"});
  ranks[1].environment = {};
  ranks[1] = numbered(std::move(ranks[1]), 1, 2);
  ranks[1].init_method = "tcp://" + address;
  expect_all({rendezvous(ranks[1]).status()}, ErrorCode::kUnavailable, {"rank 1 of 2", address, "attempts"});
}

TEST(RendezvousFault, AWrongKeyIsNamed) {
  TcpStoreServerOptions server_options;
  server_options.job_key = "the right secret";
  const auto server = TcpStoreServer::start(std::move(server_options)).value();
  auto options = env_options({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", server->endpoint().text()}});
  options.job_key = "the wrong secret";
  expect_all({rendezvous(options).status()}, ErrorCode::kPermission, {"LOCKSTEP_JOB_KEY", server->endpoint().text()});
}

// Two ranks that have met; the first serves the store.
struct Pair {
  std::unique_ptr<test::HeldPort> port;
  RendezvousOptions server_options;
  RendezvousOptions other_options;
  Rendezvous server;
  Rendezvous member;
};

Pair meet() {
  auto port = std::make_unique<test::HeldPort>();
  auto server_options = numbered(base_options(), 0, 2);
  auto other_options = numbered(base_options(), 1, 2);
  server_options.init_method = other_options.init_method = "tcp://127.0.0.1:" + text(*port);
  auto other = std::async(std::launch::async, [&] { return rendezvous(other_options).value(); });
  auto server = rendezvous(server_options).value();
  return {std::move(port), server_options, other_options, std::move(server), other.get()};
}

TEST(RendezvousFault, TheServingRankWaitsForTheOthersToLeave) {
  Pair pair = meet();
  auto leaving = std::async(std::launch::async, [&] { return pair.server.release(seconds(20)); });
  EXPECT_TRUE(pair.member.store->set("still", "here").ok());
  EXPECT_TRUE(pair.member.release().ok());
  EXPECT_TRUE(leaving.get().ok());
}

// A rank joins the next world while the rank that serves the first world's store has not left yet.
TEST(RendezvousFault, TheNextWorldMayBeginAtTheSameAddressAtOnce) {
  Pair pair = meet();
  auto spectator =
      TcpStore::connect({.server = {"127.0.0.1", pair.port->number()}}, Deadline::after(seconds(20))).value();
  const std::int64_t keys = spectator->num_keys().value();
  EXPECT_TRUE(pair.member.release().ok());  // one key more
  auto back = std::async(std::launch::async, [&] { return rendezvous(pair.other_options); });
  while (spectator->num_keys().value() < keys + 2) std::this_thread::yield();
  spectator->close();
  EXPECT_TRUE(pair.server.release(seconds(20)).ok());
  auto next = rendezvous(pair.server_options);
  EXPECT_TRUE(next.ok()) << next.status().message();
  auto again = back.get();
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_TRUE(again.value().release().ok());
  EXPECT_TRUE(next.value().release().ok());
}

TEST(RendezvousFault, TheServingRankDoesNotWaitForEver) {
  Pair pair = meet();
  const auto status = pair.server.release(milliseconds(20));
  EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
  EXPECT_EQ(pair.member.store->set("key", "1").code(), ErrorCode::kUnavailable);
}

TEST(RendezvousFault, ARankThatComesLateLearnsOfARefusalToo) {
  const test::HeldPort port;
  std::vector<RendezvousOptions> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(numbered(base_options(), rank, 3));
    ranks.back().init_method = "tcp://127.0.0.1:" + text(port);
  }
  auto serving = std::async(std::launch::async, [&] { return rendezvous(ranks[0]); });
  refuse_rendezvous(ranks[2], nullptr, "bad backend");
  std::this_thread::sleep_for(milliseconds(300));
  const auto late = rendezvous(ranks[1]);
  const auto first = serving.get();
  for (const Status& status : {first.status(), late.status()}) {
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
    EXPECT_NE(status.message().find("rank 2 could not take part: bad backend"), std::string::npos) << status.message();
  }
}

// Also where the store goes with the rank that refuses: it serves the store, or comes first to a file.
TEST(RendezvousFault, ARankThatRefusesTellsTheOthers) {
  const test::HeldPort port;
  const test::ScratchFolder folder;
  for (const std::string& url : {"tcp://127.0.0.1:" + text(port), "file://" + folder.path("world")}) {
    for (const int wrong : {0, 2}) {
      SCOPED_TRACE(url + ", rank " + std::to_string(wrong));
      std::vector<RendezvousOptions> ranks;
      for (int rank = 0; rank < 3; ++rank) {
        ranks.push_back(numbered(base_options(), rank, 3));
        ranks.back().init_method = url;
      }
      auto refusal = std::async(std::launch::async, [&] { refuse_rendezvous(ranks[wrong], nullptr, "bad backend"); });
      auto others = ranks;
      others.erase(others.begin() + wrong);
      expect_all(meet(others), ErrorCode::kMismatch,
                 {"rank " + std::to_string(wrong) + " could not take part: bad backend"});
      refusal.get();
    }
  }
  // A world of one has nobody to tell, and options that are wrong tell nobody.
  refuse_rendezvous(numbered(base_options(), 0, 1), nullptr, "alone");
  refuse_rendezvous(base_options(), nullptr, "without a rank");
}

struct BadOptions {
  std::string name;
  RendezvousOptions options;
  std::vector<std::string> mentions;
};

void PrintTo(const BadOptions& test, std::ostream* out) {
  *out << test.name;
}

std::vector<BadOptions> bad_options() {
  std::vector<BadOptions> cases{
      {"NothingSet", env_options({}), {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
      {"OneMissing",
       env_options({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
       {"needs MASTER_PORT, not"}},
      {"RankNotANumber", env_options({{"RANK", "x"}}), {"RANK", "'x'"}},
      {"PortNotANumber",
       env_options({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "p"}}),
       {"MASTER_PORT", "'p'"}},
      {"EmptyWorld", env_options({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), {"at least 1", "WORLD_SIZE"}},
      {"BadStore",
       env_options({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", "here"}}),
       {"LOCKSTEP_STORE", "'here'"}},
      {"ArgumentAgainstEnvironment",
       numbered(env_options({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), 0, 2),
       {"argument rank says 0", "RANK says 1"}},
  };
  const auto add = [&cases](const std::string& name, const std::string& url, RendezvousOptions options,
                            std::vector<std::string> mentions) {
    options.init_method = url;
    cases.push_back({name, std::move(options), std::move(mentions)});
  };
  const auto given = numbered(base_options(), 0, 2);
  add("UnknownScheme", "udp://a:1", given, {"udp://a:1", "env://"});
  add("NoPort", "tcp://a", given, {"tcp://a"});
  add("PortZero", "tcp://127.0.0.1:0", given, {"port 0"});
  add("UnknownQuery", "tcp://a:1?size=2", given, {"'size=2'"});
  add("RelativeFile", "file://tmp/x", given, {"file:///absolute/path"});
  add("UrlWithoutRank", "tcp://a:1?world_size=2", base_options(), {"RANK, not set"});
  add("ArgumentAgainstUrl", "tcp://a:1?rank=1", given, {"argument rank says 0", "says 1"});
  return cases;
}

class RendezvousOptionsTable : public testing::TestWithParam<BadOptions> {};

TEST_P(RendezvousOptionsTable, IsRefusedWithTheReason) {
  expect_all({rendezvous(GetParam().options).status()}, ErrorCode::kInvalidArgument, GetParam().mentions);
}

INSTANTIATE_TEST_SUITE_P(Bad, RendezvousOptionsTable, testing::ValuesIn(bad_options()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::comm
