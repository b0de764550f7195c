// Channels of several groups between the same two processes. Each process is a worker here, in this process.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <list>
#include <string>
#include <thread>

#include "lockstep/base/fd.h"
#include "net/networks.h"
#include "support/effort.h"
#include "support/sizes.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using test::kLong;
using test::kMiB;
using test::pattern;

// One of the processes, as a network whose endpoints are its channels.
class UcxProcess final : public test::Network {
 public:
  std::unique_ptr<Transport> open(ActiveMessageHandler handler) const override {
    return open_channel(worker_, std::move(handler), "UCX on the loopback interface").value();
  }

 private:
  std::shared_ptr<UcxWorker> worker_ =
      UcxWorker::make(*UcxLibrary::get().value(), test::UcxNetwork::loopback(), {{}, /*loopback=*/true}).value();
};

// A group of the two: its endpoints call each other by the numbers 0 and 1.
class Pair {
 public:
  Pair(const UcxProcess& here, const UcxProcess& there) : ends_{test::Endpoint(here), test::Endpoint(there)} {
    for (const int i : {0, 1}) ends_[i]->introduce(1 - i, ends_[1 - i]->address());
  }
  test::Endpoint& operator[](int i) { return ends_[i]; }

  void progress() const {
    for (const test::Endpoint& end : ends_) end.progress();
  }
  // Sends in both directions. Whether both messages have arrived.
  bool exchange(std::uint64_t tag = 1, std::size_t bytes = 10) {
    const std::array<std::string, 2> data{pattern(bytes, tag), pattern(bytes, tag + 1000)};
    std::array<std::string, 2> got{std::string(bytes, ' '), std::string(bytes, ' ')};
    std::array<TransportRequest, 2> sent, received;
    for (const int i : {0, 1}) {
      ends_[i]->receive(1 - i, tag, got[i].data(), bytes, received[i]);
      ends_[i]->send(1 - i, tag, data[i].data(), bytes, sent[i]);
    }
    const auto over = [&] {
      progress();
      return sent[0].done && sent[1].done && received[0].done && received[1].done;
    };
    return test::wait_for(over) && received[0].status.ok() && received[1].status.ok() && got[0] == data[1] &&
           got[1] == data[0];
  }

 private:
  std::array<test::Endpoint, 2> ends_;
};

class SharedWorker : public testing::Test {
 protected:
  Pair& add() { return pairs_.emplace_back(here_, there_); }

  UcxProcess here_, there_;
  std::list<Pair> pairs_;
};

TEST_F(SharedWorker, TakesNoDescriptorForAFurtherGroup) {
  ASSERT_TRUE(add().exchange());
  const std::size_t before = test::Leftovers::now().descriptors.size();
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(add().exchange()) << i;
  EXPECT_LE(test::Leftovers::now().descriptors.size(), before + 5);
}

// The groups use the same tags, as all groups of a program do, and take their messages in another order.
TEST_F(SharedWorker, NeverMixesGroupsUp) {
  constexpr int kGroups = 8;
  constexpr std::array<std::uint64_t, 3> kTags{0, 1, ~std::uint64_t{0}};
  std::list<TransportRequest> requests;
  std::array<std::array<std::string, kTags.size()>, kGroups> data, got;
  for (int group = 0; group < kGroups; ++group) {
    Pair& pair = add();
    for (std::size_t i = 0; i < kTags.size(); ++i) {
      data[group][i] = pattern(600'000, std::size_t(group) * 10 + i);
      got[group][i].resize(600'000);
      pair[0]->send(1, kTags[i], data[group][i].data(), 600'000, requests.emplace_back());
      pair[0]->post(1, std::to_string(group), data[group][i].data(), 100, requests.emplace_back());
    }
  }
  for (auto pair = pairs_.rbegin(); pair != pairs_.rend(); ++pair) {
    const auto group = kGroups - 1 - std::distance(pairs_.rbegin(), pair);
    for (std::size_t i = kTags.size(); i-- > 0;)
      (*pair)[1]->receive(0, kTags[i], got[group][i].data(), 600'000, requests.emplace_back());
  }
  ASSERT_TRUE(test::wait_for([&] {
    bool over = true;
    for (Pair& pair : pairs_) {
      pair.progress();
      over = over && pair[1].arrived().size() == kTags.size();
    }
    for (const TransportRequest& request : requests) over = over && request.done;
    return over;
  }));
  EXPECT_EQ(got, data);
  int group = 0;
  for (Pair& pair : pairs_) {
    for (const auto& message : pair[1].arrived()) EXPECT_EQ(message.header, std::to_string(group));
    ++group;
  }
}

TEST_F(SharedWorker, LeavesTheOtherGroupsWhenOneEnds) {
  for (const bool gently : {true, false}) {
    Pair& stays = add();
    Pair& ends = add();
    ASSERT_TRUE(stays.exchange() && ends.exchange());
    TransportRequest sent, posted, expected, fails;
    char byte = 0;
    const std::string data = pattern(kMiB, 1);
    ends[1]->receive(0, 5, &byte, 1, expected);
    ends[0]->send(1, 6, data.data(), data.size(), sent);   // nobody will ask for it
    ends[0]->post(1, "large", data.data(), kMiB, posted);  // nor for this
    while (!sent.done) ends.progress();
    ends[0]->close(gently, 1s);
    EXPECT_TRUE(posted.done);
    ASSERT_TRUE(test::wait_for([&] {
      ends.progress();
      return ends[1]->is_lost(0);
    }));
    ends[1]->send(0, 5, &byte, 1, fails);
    EXPECT_EQ(fails.status.code(), ErrorCode::kPeerFailed);
    EXPECT_FALSE(expected.done);
    EXPECT_TRUE(stays.exchange(7, 3 * kMiB));
    ends[1]->close(gently, 1s);
    EXPECT_TRUE(expected.done);
    EXPECT_TRUE(stays.exchange(8));
    EXPECT_FALSE(stays[0]->is_lost(1) || stays[1]->is_lost(0));
  }
}

TEST_F(SharedWorker, TellsWhoComesTooLate) {
  ASSERT_TRUE(add().exchange());
  Pair& late = add();
  late[1]->close(true, 1s);
  TransportRequest posted;
  const std::string data = pattern(kMiB, 1);
  late[0]->post(1, "large", data.data(), data.size(), posted);
  ASSERT_TRUE(test::wait_for([&] {
    late[0].progress();
    pairs_.front().progress();
    return late[0]->is_lost(1) && posted.done;
  }));
  EXPECT_EQ(posted.status.code(), ErrorCode::kPeerFailed);
  EXPECT_TRUE(pairs_.front().exchange(2));
}

// Afterwards new groups connect anew, to the same addresses.
TEST_F(SharedWorker, LosesThePeersOfAllGroupsWithTheConnection) {
  const std::set<int> before = test::Leftovers::now().descriptors;
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    Pair* const groups[] = {&add(), &add(), &add()};
    for (Pair* const group : groups) ASSERT_TRUE(group->exchange());
    for (const int fd : test::Leftovers::now().descriptors) {
      if (!before.contains(fd)) (void)shutdown(fd, SHUT_RDWR);
    }
    ASSERT_TRUE(test::wait_for([&] {
      bool lost = true;
      for (Pair* const group : groups) {
        group->progress();
        lost = lost && (*group)[0]->is_lost(1) && (*group)[1]->is_lost(0);
      }
      return lost;
    }));
  }
}

TEST_F(SharedWorker, OfAProcessThatEndsIsLostToAllGroups) {
  const auto gone = std::make_unique<UcxProcess>();
  std::list<test::Endpoint> here, there;
  for (int i = 0; i < 3; ++i) {
    here.emplace_back(here_);
    there.emplace_back(*gone);
    here.back()->introduce(1, there.back()->address());
    TransportRequest sent;
    here.back()->post(1, "hello", nullptr, 0, sent);
    ASSERT_TRUE(test::wait_for([&] {
      here.back().progress();
      there.back().progress();
      return sent.done && !there.back().arrived().empty();
    }));
  }
  there.clear();
  for (test::Endpoint& end : here) {
    EXPECT_TRUE(test::wait_for([&] {
      end.progress();
      return end->is_lost(1);
    }));
  }
}

// Each thread sleeps until its own message comes, whichever thread has taken it in.
TEST_F(SharedWorker, WakesTheThreadOfEachGroup) {
  constexpr int kThreads = 3;
  const int rounds = test::repetitions(300);
  for (int i = 0; i < kThreads; ++i) ASSERT_TRUE(add().exchange());
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (Pair& pair : pairs_) {
    for (const int end : {0, 1}) {
      threads.emplace_back([&pair, &failed, end] {
        for (int round = 0; round < rounds; ++round) {
          int value = -1;
          TransportRequest sent, received;
          pair[end]->receive(1 - end, 3, &value, sizeof value, received);
          if (end == 0) pair[end]->send(1, 3, &round, sizeof round, sent);
          const auto wait = [&](const TransportRequest& request) {
            while (!request.done) {
              if (!pair[end].progress() && !request.done && pair[end]->may_sleep()) pair[end]->sleep(kLong);
            }
          };
          wait(received);
          if (end == 1) pair[end]->send(0, 3, &round, sizeof round, sent);
          wait(sent);
          if (value != round) ++failed;
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

// A stranger is not even connected, because the kernel drops what it sends.
TEST(SharedPort, AdmitsTheMachinesOfEveryGroup) {
  const std::set<int> before = test::Leftovers::now().descriptors;
  const auto open = [](const std::string& machine) {
    return open_ucx(test::UcxNetwork::loopback(), {{machine}, /*loopback=*/false},
                    [](const ActiveMessage&) { return false; });
  };
  const auto first = open("127.0.0.2");
  ASSERT_TRUE(first.ok()) << first.status().message();
  sockaddr_in port{};
  for (const int fd : test::Leftovers::now().descriptors) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (before.contains(fd) || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0)
      continue;
    size = sizeof port;
    ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&port), &size), 0);
  }
  ASSERT_NE(port.sin_port, 0);
  const auto call_from = [&](const char* machine) {
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in own{};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, machine, &own.sin_addr);
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&port), sizeof port) != 0) {
      EXPECT_EQ(errno, EINPROGRESS);
    }
    return socket;
  };
  const auto gets_in = [](const Fd& socket) {
    pollfd entry{socket.get(), POLLOUT, 0};
    return poll(&entry, 1, 0) == 1 && (entry.revents & POLLERR) == 0;
  };
  const Fd stranger = call_from("127.0.0.3");
  const Fd member = call_from("127.0.0.2");
  EXPECT_TRUE(test::wait_for([&] { return gets_in(member); }));
  EXPECT_FALSE(gets_in(stranger));
  const auto second = open("127.0.0.3");
  ASSERT_TRUE(second.ok()) << second.status().message();
  for (const char* const machine : {"127.0.0.3", "127.0.0.2"}) {
    const Fd caller = call_from(machine);
    EXPECT_TRUE(test::wait_for([&] { return gets_in(caller); })) << machine;
  }
  EXPECT_FALSE(gets_in(call_from("127.0.0.4")));
}

// A group is made, used and closed while other threads move data.
TEST_F(SharedWorker, TakesNewGroupsWhileOthersMoveData) {
  std::atomic<bool> over{false};
  std::atomic<int> failed{0};
  constexpr int kThreads = 2;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, &pair = add()] {
      for (std::uint64_t tag = 1; !over; ++tag) {
        if (!pair.exchange(tag, tag % 3 == 0 ? kMiB : 100)) ++failed;
      }
    });
  }
  for (int i = 0; i < test::repetitions(100); ++i) {
    Pair pair(here_, there_);
    EXPECT_TRUE(pair.exchange(1, i % 10 == 0 ? kMiB : 10)) << i;
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace lockstep::comm
