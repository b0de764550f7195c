// The hand-over of memory between ranks, with ranks as threads: success, and everything that may go wrong.
#include "shm/hand_over.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "lockstep/store/hash_store.h"
#include "shm/hand_over_protocol.h"
#include "shm/memory_file.h"
#include "store/tcp/unix_socket.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

std::size_t count_descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

struct Rank {
  int rank;
  int group_size;
};

std::shared_ptr<SharedArena> small_arena() {
  SharedArenaOptions options;
  options.first_segment = std::size_t{1} << 20;
  return SharedArena::create(options).value();
}

using Outcome = std::optional<Result<HandOver>>;

// All ranks at once; `stranger` runs beside them.
std::vector<Outcome> hand_over_all(
    const std::vector<Rank>& ranks, HashStore& store, Deadline deadline,
    const std::function<void()>& stranger = [] {}) {
  std::vector<Outcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto arena = small_arena();
      std::memset(arena->allocate(16).value(), ranks[i].rank + 1, 16);
      HandOverOptions options;
      options.rank = ranks[i].rank;
      options.group_size = ranks[i].group_size;
      options.name = "test";
      options.control_bytes = 4096;
      outcomes[i].emplace(hand_over(store, *arena, options, deadline));
    });
  }
  stranger();
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void expect_complete(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE((*outcome).ok()) << outcome->status().message();
    const HandOver& parts = outcome->value();
    ASSERT_EQ(parts.peers.size(), outcomes.size());
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_EQ(parts.peers[rank].arena->base()[7], std::byte(rank + 1));
      EXPECT_EQ(parts.peers[rank].pid, getpid());
      EXPECT_TRUE(parts.peers[rank].process->valid());
    }
    EXPECT_EQ(parts.control->bytes(), 4096U);
  }
}

void expect_everyone_told(const std::vector<Outcome>& outcomes, ErrorCode code, const std::string& text) {
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    ASSERT_FALSE(outcomes[i]->ok()) << "participant " << i;
    EXPECT_EQ(outcomes[i]->status().code(), code) << i << ": " << outcomes[i]->status().message();
    EXPECT_NE(outcomes[i]->status().message().find(text), std::string::npos)
        << i << ": " << outcomes[i]->status().message();
  }
}

std::string socket_name(HashStore& store) {
  const Bytes address = store.get("lockstep/test/address", Deadline::after(10s)).value();
  return address.substr(offsetof(HostAddress, socket), 48).c_str();
}

TEST(HandOver, EveryRankSeesEveryMemory) {
  const std::size_t before = count_descriptors();
  for (const int world : {1, 2, 5}) {
    HashStore store;
    std::vector<Rank> ranks;
    for (int rank = 0; rank < world; ++rank) ranks.push_back({rank, world});
    const auto outcomes = hand_over_all(ranks, store, Deadline::after(10s));
    expect_complete(outcomes);
    outcomes[0]->value().control->base()[99] = std::byte{7};
    EXPECT_EQ(outcomes[world - 1]->value().control->base()[99], std::byte{7});
  }
  EXPECT_EQ(count_descriptors(), before);
}

TEST(HandOver, RankTwiceIsNamedOnEveryRank) {
  const std::size_t before = count_descriptors();
  HashStore store;
  const auto outcomes = hand_over_all({{0, 4}, {1, 4}, {1, 4}}, store, Deadline::after(10s));
  expect_everyone_told(outcomes, ErrorCode::kMismatch, "rank 1 joined twice, as pid " + std::to_string(getpid()));
  EXPECT_EQ(count_descriptors(), before);
}

TEST(HandOver, WorldSizesThatDifferAreNamed) {
  HashStore store;
  const auto outcomes = hand_over_all({{0, 3}, {1, 4}}, store, Deadline::after(10s));
  expect_everyone_told(outcomes, ErrorCode::kMismatch, "joined as rank 1 of 4, rank 0 expects a group of 3");
}

TEST(HandOver, MissingRanksAreNamedOnEveryRank) {
  const std::size_t before = count_descriptors();
  HashStore store;
  const auto outcomes = hand_over_all({{0, 4}, {2, 4}}, store, Deadline::after(3s));
  expect_everyone_told(outcomes, ErrorCode::kTimeout, "group 'test': rank(s) 1, 3 did not join");
  EXPECT_EQ(count_descriptors(), before);
}

TEST(HandOver, MissingRankZeroIsNamed) {
  HashStore store;
  const auto outcomes = hand_over_all({{1, 2}}, store, Deadline::after(100ms));
  expect_everyone_told(outcomes, ErrorCode::kTimeout, "waiting for rank 0");
}

TEST(HandOver, LateRankZeroDoesNotWaitForRanksThatHaveLeft) {
  HashStore store;
  hand_over_all({{1, 2}}, store, Deadline::after(50ms));
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = hand_over_all({{0, 2}}, store, Deadline::after(60s));
  expect_everyone_told(outcomes, ErrorCode::kTimeout, "rank 1: waiting for rank 0");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

TEST(HandOver, LateRankLearnsWhyThereIsNoGroup) {
  HashStore store;
  hand_over_all({{0, 2}}, store, Deadline::after(50ms));
  const auto outcomes = hand_over_all({{1, 2}}, store, Deadline::after(10s));
  ASSERT_FALSE(outcomes[0]->ok());
  EXPECT_NE(outcomes[0]->status().message().find("rank(s) 1 did not join"), std::string::npos)
      << outcomes[0]->status().message();
}

TEST(HandOver, AnotherMachineIsRefusedByName) {
  // Rank 0 publishes where it runs; rank 1 reads an address of a machine with another boot.
  HashStore store;
  std::vector<Outcome> zero;
  std::thread first([&] { zero = hand_over_all({{0, 2}}, store, Deadline::after(10s)); });
  Bytes address = store.get("lockstep/test/address", Deadline::after(10s)).value();
  address[0] = address[0] == 'x' ? 'y' : 'x';
  std::strcpy(address.data() + offsetof(HostAddress, host), "elsewhere");
  ASSERT_TRUE(store.set("lockstep/test/address", address).ok());
  const auto one = hand_over_all({{1, 2}}, store, Deadline::after(10s));
  first.join();
  expect_everyone_told(one, ErrorCode::kUnsupported, "rank 0 on host elsewhere");
  expect_everyone_told(zero, ErrorCode::kUnsupported, "group 'test': rank 1 runs on host");
}

TEST(HandOver, GarbageInTheStoreIsNoAddress) {
  HashStore store;
  ASSERT_TRUE(store.set("lockstep/test/address", "nonsense").ok());
  const auto outcomes = hand_over_all({{1, 2}}, store, Deadline::after(10s));
  expect_everyone_told(outcomes, ErrorCode::kCorrupt, "group 'test'");
}

TEST(HandOver, WrongTokenIsNobody) {
  HashStore store;
  // A process that knows the socket but not the token cannot take a rank's place: neither rank finds the other.
  std::vector<Outcome> zero;
  std::thread first([&] { zero = hand_over_all({{0, 2}}, store, Deadline::after(3s)); });
  Bytes address = store.get("lockstep/test/address", Deadline::after(10s)).value();
  constexpr std::size_t kToken = offsetof(HostAddress, token);
  address[kToken] = static_cast<char>(address[kToken] ^ 1);
  ASSERT_TRUE(store.set("lockstep/test/address", address).ok());
  const auto one = hand_over_all({{1, 2}}, store, Deadline::after(10s));
  first.join();
  expect_everyone_told(one, ErrorCode::kPeerFailed, "closed the connection");
  expect_everyone_told(zero, ErrorCode::kTimeout, "rank(s) 1 did not join");
}

TEST(HandOver, StrangersDoNotDisturb) {
  const std::size_t before = count_descriptors();
  {
    HashStore store;
    std::vector<Fd> silent;
    std::thread late;
    std::vector<Outcome> second;
    auto first = hand_over_all({{0, 3}, {2, 3}}, store, Deadline::after(20s), [&] {
      const std::string name = socket_name(store);
      const Deadline soon = Deadline::after(10s);
      const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
      const std::array<int, 3> gifts{null.get(), null.get(), null.get()};
      for (const std::size_t bytes : {1, 48, 56, 5000}) {
        const Fd client = connect_unix(name, soon).value();
        const std::vector<std::byte> garbage(bytes, std::byte{0xee});
        (void)send_message(client.get(), garbage, gifts, soon);
        silent.push_back(connect_unix(name, soon).value());  // connects and sends nothing
        (void)connect_unix(name, soon).value();              // and one that leaves at once
      }
      late = std::thread([&] { second = hand_over_all({{1, 3}}, store, Deadline::after(20s)); });
    });
    late.join();
    first.insert(first.begin() + 1, std::move(second[0]));
    expect_complete(first);
  }
  EXPECT_EQ(count_descriptors(), before);
}

TEST(HandOver, OneProcessMapsOneMemoryOnce) {
  HashStore first;
  HashStore second;
  const auto arena = small_arena();
  HandOverOptions options;
  options.name = "test";
  options.control_bytes = 4096;
  const auto a = hand_over(first, *arena, options, Deadline::never());
  const auto b = hand_over(second, *arena, options, Deadline::never());
  EXPECT_EQ(a.value().peers[0].arena, b.value().peers[0].arena);
  EXPECT_EQ(a.value().peers[0].process, b.value().peers[0].process);
  EXPECT_NE(a.value().control, b.value().control);
}

TEST(UnixSocket, CarriesWholeMessagesAndDescriptors) {
  const std::string name = "lockstep-test-" + std::to_string(getpid());
  const Fd listener = listen_unix(name, 4).value();
  EXPECT_FALSE(accept_unix(listener.get()).value().valid());
  const Deadline soon = Deadline::after(10s);
  const Fd client = connect_unix(name, soon).value();
  const Fd server = accept_unix(listener.get()).value();
  ASSERT_TRUE(server.valid());
  EXPECT_TRUE(check_same_user(server.get()).ok());

  const std::array<std::byte, 3> sent{std::byte{1}, std::byte{2}, std::byte{3}};
  const Fd gift(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = gift.get();
  ASSERT_TRUE(send_message(client.get(), sent, std::span(&number, 1), soon).ok());
  std::array<std::byte, 3> got{};
  std::vector<Fd> descriptors;
  ASSERT_TRUE(receive_message(server.get(), got, &descriptors, soon).ok());
  EXPECT_EQ(got, sent);
  ASSERT_EQ(descriptors.size(), 1U);
  EXPECT_NE(fcntl(descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);

  ASSERT_TRUE(send_message(client.get(), sent, {}, soon).ok());
  std::array<std::byte, 2> too_short{};
  EXPECT_EQ(receive_message(server.get(), too_short, &descriptors, soon).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(receive_message(server.get(), got, &descriptors, Deadline::after(1ms)).code(), ErrorCode::kTimeout);
}

TEST(UnixSocket, FullBacklogEndsAtTheDeadline) {
  const std::string name = "lockstep-test-full-" + std::to_string(getpid());
  const Fd listener = listen_unix(name, 1).value();
  std::vector<Fd> clients;
  for (int i = 0; i < 100; ++i) {
    auto client = connect_unix(name, Deadline::after(20ms));
    if (!client.ok()) {
      EXPECT_EQ(client.status().code(), ErrorCode::kTimeout) << client.status().message();
      return;
    }
    clients.push_back(std::move(client).value());
  }
  FAIL() << "the backlog never filled";
}

}  // namespace
}  // namespace lockstep::comm
