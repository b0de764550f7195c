// Another user of the machine, or another job of the same user, gets nothing from a hand-over.
#include "support/other_user.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <future>

#include "lockstep/store/hash_store.h"
#include "shm/hand_over.h"
#include "shm/hand_over_protocol.h"
#include "shm/memory_file.h"
#include "store/tcp/unix_socket.h"
#include "support/process.h"
#include "support/process_ranks.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using test::OtherUser;

constexpr std::size_t kReserve = std::size_t{1} << 20;
const std::string kAddressKey = "lockstep/test/address";

Result<HandOver> hand_over_as(int rank, int group_size, Store& store, Deadline deadline = Deadline::after(20s)) {
  SharedArenaOptions small;
  small.first_segment = kReserve;
  const auto arena = SharedArena::create(small).value();
  HandOverOptions options;
  options.rank = rank;
  options.group_size = group_size;
  options.name = "test";
  options.control_bytes = 4096;
  return hand_over(store, *arena, options, deadline);
}

Bytes bytes_of(const HostAddress& address) {
  return {reinterpret_cast<const char*>(&address), sizeof address};
}

HostAddress published(Store& store) {
  return read_address(store.get(kAddressKey, Deadline::after(20s)).value()).value();
}

void expect_mentions(const std::string& text, std::initializer_list<std::string> words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
}

bool wait_for_socket(const std::string& name) {
  return test::wait_for([&] {
    std::ifstream table("/proc/net/unix");
    for (std::string line; std::getline(table, line);) {
      if (line.ends_with("@" + name)) return true;
    }
    return false;
  });
}

// Acts as rank 0 at a socket, with this token, and says what it receives.
std::string play_rank_zero(const std::string& socket, const Token& greeting) {
  const Fd listener = listen_unix(socket, 8).value();
  const std::vector<Fd> none;
  if (!wait_readable(none, listener.get(), Deadline::after(10s)).value()) return "nobody came";
  const Fd guest = accept_unix(listener.get()).value();
  HandOverMessage message;
  message.kind = HandOverMessage::Kind::kGreeting;
  message.token = greeting;
  (void)send_message(guest.get(), message, Deadline::after(10s));
  std::vector<Fd> gifts;
  (void)receive_message(guest.get(), HandOverMessage::Kind::kIntroduction, message, &gifts, Deadline::after(10s));
  return std::to_string(gifts.size()) + " descriptors";
}

// A store that anybody can write to (Python's, for example) leads a rank to the socket of another user, who knows
// everything in the store.
TEST(HandOverToAnotherUser, GivesNothing) {
  const test::Leftovers before = test::Leftovers::now();
  HashStore store;
  const HostAddress address = make_address().value();
  {
    OtherUser thief([&] { return play_rank_zero(address.socket.data(), address.greeting); });
    ASSERT_TRUE(wait_for_socket(address.socket.data()));
    ASSERT_TRUE(store.set(kAddressKey, bytes_of(address)).ok());
    const Status status = hand_over_as(1, 2, store).status();
    EXPECT_EQ(status.code(), ErrorCode::kPermission);
    expect_mentions(status.message(), {"rank 1", "runs as user " + std::to_string(OtherUser::kNumber),
                                       "this one as " + std::to_string(geteuid()), "nothing was handed over"});
    EXPECT_EQ(thief.result(), "0 descriptors");
  }
  expect_nothing_left(before);
}

TEST(HandOverToAnotherUser, AnotherJobOfTheSameUserGetsNothingEither) {
  HashStore store;
  const HostAddress address = make_address().value();
  Token wrong = address.greeting;
  wrong[3] ^= std::byte{1};
  auto other = std::async(std::launch::async, [&] { return play_rank_zero(address.socket.data(), wrong); });
  ASSERT_TRUE(wait_for_socket(address.socket.data()));
  ASSERT_TRUE(store.set(kAddressKey, bytes_of(address)).ok());
  const Status status = hand_over_as(1, 2, store).status();
  EXPECT_EQ(status.code(), ErrorCode::kPermission);
  expect_mentions(status.message(), {"another job", "nothing was handed over"});
  EXPECT_EQ(other.get(), "0 descriptors");
}

// It has the token and is as fast as it can be; the ranks are not disturbed.
TEST(HandOverToAnotherUser, DoesNotLetItJoinOrKeepTheRanksApart) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  const Fd told(ends[0]), tell(ends[1]);  // that the other user has come
  const test::Leftovers before = test::Leftovers::now();
  HashStore store;
  std::vector<std::future<Result<HandOver>>> ranks;
  ranks.push_back(std::async(std::launch::async, [&] { return hand_over_as(0, 3, store); }));
  const HostAddress address = published(store);
  const auto act = [&] {
    const Fd memory = make_memory_file("theirs", kReserve).value();
    HandOverMessage message;
    message.kind = HandOverMessage::Kind::kIntroduction;
    message.token = address.token;
    message.introduction = {1, 3, getpid(), kReserve};
    std::vector<Fd> open;
    for (std::size_t gifts = 0, came = 0;; ++came) {
      auto fd = connect_unix(address.socket.data(), Deadline::after(20s));
      if (!fd.ok()) return std::to_string(gifts) + " descriptors, " + (came > 0 ? "after a while" : "at once");
      if (came == 0) (void)!write(tell.get(), "x", 1);
      const std::array<int, 2> own{memory.get(), memory.get()};
      (void)send_message(fd.value().get(), message, Deadline::after(1s), own);
      std::vector<Fd> got;
      HandOverMessage answer;
      if (came < 3)
        (void)receive_message(fd.value().get(), HandOverMessage::Kind::kControl, answer, &got, Deadline::after(1s));
      gifts += got.size();
      open.push_back(std::move(fd).value());
      if (open.size() > 500) open.clear();
    }
  };
  {
    OtherUser first(act);
    OtherUser second(act);
    char byte = 0;
    for (int user = 0; user < 2; ++user) {
      ASSERT_TRUE(test::wait_for([&] { return read(told.get(), &byte, 1) == 1; })) << "the other user does not come";
    }
    ranks.reserve(3);
    for (int rank = 1; rank < 3; ++rank)
      ranks.push_back(std::async(std::launch::async, [&store, rank] { return hand_over_as(rank, 3, store); }));
    for (auto& rank : ranks) {
      auto parts = rank.get();
      ASSERT_TRUE(parts.ok()) << parts.status().message();
      for (const Peer& peer : parts->peers) EXPECT_EQ(peer.pid, getpid());
    }
    EXPECT_EQ(first.result(), "0 descriptors, after a while");
    EXPECT_EQ(second.result(), "0 descriptors, after a while");
  }
  expect_nothing_left(before);
}

TEST(MemoryFile, CannotBeMadeSmallerButGrowsAndGivesPagesBack) {
  const Fd file = make_memory_file("test", 8192).value();
  EXPECT_NE(ftruncate(file.get(), 4096), 0);
  EXPECT_EQ(ftruncate(file.get(), 16384), 0);
  EXPECT_EQ(fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE), 0) << "a peer could make it useless";
  EXPECT_TRUE(check_memory_file(file.get(), 16384).ok());
  EXPECT_EQ(check_memory_file(file.get(), 16385).status().code(), ErrorCode::kCorrupt);
}

// All ranks learn which rank has handed over something else.
TEST(MemoryFile, EverythingElseIsRefusedByName) {
  const Fd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kReserve), 0);
  const Fd sealed = make_memory_file("small", kReserve / 2).value();
  const Fd good = make_memory_file("good", kReserve).value();
  const Fd read_only(open(("/proc/self/fd/" + std::to_string(good.get())).c_str(), O_RDONLY | O_CLOEXEC));
  const Fd device(open("/dev/zero", O_RDWR | O_CLOEXEC));
  // The last one's memory is valid, but its pidfd is not.
  for (const int memory : {unsealed.get(), sealed.get(), read_only.get(), device.get(), good.get()}) {
    HashStore store;
    auto zero = std::async(std::launch::async, [&] { return hand_over_as(0, 2, store).status(); });
    const HostAddress address = published(store);
    const Fd socket = connect_unix(address.socket.data(), Deadline::after(20s)).value();
    HandOverMessage message;
    message.kind = HandOverMessage::Kind::kIntroduction;
    message.token = address.token;
    message.introduction = {1, 2, getpid(), kReserve};
    const std::array<int, 2> gifts{memory, device.get()};
    ASSERT_TRUE(send_message(socket.get(), message, Deadline::after(20s), gifts).ok());
    const Status status = zero.get();
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    expect_mentions(status.message(), {"rank 1"});
  }
}

}  // namespace
}  // namespace lockstep::comm
