// What every transport promises of connections, of sleep and of its end, run by the fake one and by UCX.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "net/networks.h"
#include "support/forked.h"
#include "support/sizes.h"

namespace lockstep::comm {
namespace {

using test::pattern;
using namespace std::chrono_literals;

using test::kLong;
using test::kMiB;

class Connections : public test::OverEachNetwork {
 protected:
  void expect_failure(const TransportRequest& request) {
    ASSERT_TRUE(finish(request));
    EXPECT_EQ(request.status.code(), ErrorCode::kPeerFailed) << request.status.message();
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Connections, test::all_networks(), test::name_of_network);

TEST_P(Connections, AreMadeWhenSomethingPasses) {
  EXPECT_FALSE(at(0)->describe().empty());
  EXPECT_NE(at(0)->address(), at(1)->address());
  EXPECT_FALSE(at(0)->is_connected(1));
  connect(0, 1);
  EXPECT_TRUE(at(0)->is_connected(1));
  EXPECT_TRUE(at(1)->is_connected(0));
  EXPECT_FALSE(at(0)->is_connected(2));
  for (const int peer : {1, 2, 99}) EXPECT_FALSE(at(0)->is_lost(peer)) << peer;
}

// UCX up to 1.16 ignores settings of TCP under their full names, without a word.
TEST_P(Connections, AreWatchedByTheKernelEverySecond) {
  const std::set<int> before = test::Leftovers::now().descriptors;
  connect(0, 1);
  const auto option = [](int socket, int level, int name) {
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(socket, level, name, &value, &size) == 0 ? value : -1;
  };
  int watched = 0;
  for (const int socket : test::Leftovers::now().descriptors) {
    if (before.contains(socket) || option(socket, SOL_SOCKET, SO_KEEPALIVE) != 1) continue;
    ++watched;
    EXPECT_LE(option(socket, IPPROTO_TCP, TCP_KEEPIDLE), 2);
    EXPECT_EQ(option(socket, IPPROTO_TCP, TCP_KEEPINTVL), 1);
    EXPECT_EQ(option(socket, IPPROTO_TCP, TCP_KEEPCNT), 3);
  }
  const bool has_sockets = std::string(GetParam().name) != "Fake";
  EXPECT_EQ(watched > 0, has_sockets);
}

TEST_P(Connections, ToAPeerThatNobodyHasIntroducedFailAtOnce) {
  std::list<TransportRequest> requests;
  char byte = 0;
  at(0)->send(99, 1, &byte, 1, requests.emplace_back());
  at(0)->receive(99, 1, &byte, 1, requests.emplace_back());
  at(0)->post(99, "header", &byte, 1, requests.emplace_back());
  for (const TransportRequest& request : requests) {
    EXPECT_TRUE(request.done);
    EXPECT_EQ(request.status.code(), ErrorCode::kPeerFailed);
  }
}

TEST_P(Connections, AreLostWhenThePeerClosesAndTheOthersStay) {
  for (const bool gently : {true, false}) {
    SCOPED_TRACE(gently);
    const int leaver = gently ? 1 : 2;
    connect(0, leaver);
    char byte = 0;
    TransportRequest waiting;
    at(0)->receive(leaver, 5, &byte, 1, waiting);
    at(leaver)->close(gently, 1s);
    at(leaver).destroy();
    ASSERT_TRUE(until([&] { return at(0)->is_lost(leaver); }));
    TransportRequest sent, received, posted;
    at(0)->send(leaver, 5, &byte, 1, sent);
    at(0)->receive(leaver, 5, &byte, 1, received);
    at(0)->post(leaver, "header", &byte, 1, posted);
    for (const TransportRequest* request : {&sent, &received, &posted}) expect_failure(*request);
    if (leaver == 1) {
      EXPECT_FALSE(at(0)->is_lost(2));
      connect(0, 2);
    }
    at(0)->close(false, 0s);
    expect_failure(waiting);
    start_again();
  }
}

TEST_P(Connections, ToAPeerThatIsGoneAlreadyAreLost) {
  at(1).destroy();
  const std::string data = pattern(kMiB, 1);
  TransportRequest sent, posted;
  at(0)->send(1, 5, data.data(), data.size(), sent);
  at(0)->post(1, "header", data.data(), data.size(), posted);
  ASSERT_TRUE(until([&] { return at(0)->is_lost(1); }));
  at(0)->close(false, 0s);
  EXPECT_TRUE(sent.done);  // perhaps handed over while the connection was there
  EXPECT_TRUE(posted.done);
  EXPECT_EQ(posted.status.code(), ErrorCode::kPeerFailed) << posted.status.message();
}

// The receiver has a thread of its own, as ranks have.
TEST_P(Connections, ThatCloseGentlyDeliverWhatWasHandedOver) {
  connect(0, 1);
  constexpr int kMessages = 20;
  std::vector<std::string> data;
  for (int i = 0; i < kMessages; ++i) data.push_back(pattern(i % 4 == 0 ? kMiB : 1000 + i, i));
  std::thread receiver([&] {
    std::list<test::Place> places;
    std::list<TransportRequest> received;
    for (int i = 0; i < kMessages; ++i) {
      places.emplace_back(data[i].size());
      at(1)->receive(0, i, places.back().data(), data[i].size(), received.emplace_back());
    }
    auto place = places.begin();
    const Deadline deadline = Deadline::after(test::kPatience);
    for (const TransportRequest& request : received) {
      while (!request.done && !deadline.expired()) at(1)->progress();
      EXPECT_TRUE(request.done && request.status.ok()) << request.status.message();
      const std::string got = (place++)->text();
      EXPECT_EQ(got, data[std::distance(places.begin(), place) - 1]);
    }
    at(1)->close(false, 0s);
  });
  std::list<TransportRequest> sent;
  for (int i = 0; i < kMessages; ++i) at(0)->send(1, i, data[i].data(), data[i].size(), sent.emplace_back());
  at(0)->close(true, test::kPatience);
  for (const TransportRequest& request : sent) EXPECT_TRUE(request.done && request.status.ok());
  receiver.join();
}

// Of every kind, with a peer that takes nothing: their memory is free afterwards, and no byte of it is read or written.
TEST_P(Connections, ThatCloseEndEveryRequest) {
  for (const bool gently : {false, true}) {
    SCOPED_TRACE(gently);
    connect(0, 1);
    auto data = std::make_unique<std::string>(pattern(8 * kMiB, 1));
    auto requests = std::make_unique<std::list<TransportRequest>>();
    // One that has been announced, and is being fetched from a peer that does nothing for it.
    TransportRequest announced;
    at(1)->post(0, "from the other", data->data(), kMiB, announced);
    ASSERT_TRUE(until([&] { return !at(0).arrived().empty(); }));
    std::string into(kMiB, ' ');
    at(0)->fetch(at(0).arrived().front().handle, into.data(), into.size(), requests->emplace_back());
    for (int i = 0; i < 4; ++i) at(0)->send(1, 1, data->data(), data->size(), requests->emplace_back());
    at(0)->post(1, "small", data->data(), 100, requests->emplace_back());
    at(0)->post(1, "large", data->data(), data->size(), requests->emplace_back());
    std::string place(kMiB, ' ');
    at(0)->receive(1, 2, place.data(), place.size(), requests->emplace_back());
    at(0)->close(gently, 50ms);
    int number = 0;
    for (const TransportRequest& request : *requests) EXPECT_TRUE(request.done) << number++;
    requests.reset();
    at(0).destroy();
    ASSERT_TRUE(until([&] { return at(1)->is_lost(0); }));
    progress_for_a_while();
    at(1)->close(false, 0s);
    EXPECT_TRUE(announced.done);
    data.reset();
    start_again();
  }
}

TEST_P(Connections, ThatAreClosedDoNothingMore) {
  connect(0, 1);
  at(0)->close(false, 0s);
  at(0)->close(true, 1s);
  EXPECT_FALSE(at(0)->progress());
  EXPECT_FALSE(at(0)->may_sleep());
  char byte = 0;
  std::list<TransportRequest> requests;
  at(0)->send(1, 1, &byte, 1, requests.emplace_back());
  at(0)->receive(1, 1, &byte, 1, requests.emplace_back());
  at(0)->post(1, "header", &byte, 1, requests.emplace_back());
  for (const TransportRequest& request : requests) {
    EXPECT_TRUE(request.done);
    EXPECT_EQ(request.status.code(), ErrorCode::kPeerFailed);
  }
}

// Sockets of the program that a program it starts shall get.
class OwnSockets {
 public:
  OwnSockets() = default;
  ~OwnSockets() {
    for (const int fd : all_) ::close(fd);
  }
  OwnSockets(const OwnSockets&) = delete;
  OwnSockets& operator=(const OwnSockets&) = delete;

  std::size_t count() const { return all_.size(); }
  int open() { return all_.emplace_back(socket(AF_INET, SOCK_STREAM, 0)); }
  // A connection to a port whose two bytes occur in `address`.
  bool connect_to_port_in(const std::string& address) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto* const any = reinterpret_cast<const sockaddr*>(&name);
    const int listener = open();
    for (std::size_t i = 0; i + 1 < address.size(); ++i) {
      std::memcpy(&name.sin_port, &address[i], sizeof name.sin_port);
      if (ntohs(name.sin_port) < 1024 || bind(listener, any, sizeof name) != 0) continue;
      return listen(listener, 1) == 0 && ::connect(open(), any, sizeof name) == 0;
    }
    return false;
  }
  bool contains(int fd) const { return std::find(all_.begin(), all_.end(), fd) != all_.end(); }
  void expect_intact() const {
    const auto is_inherited = [](int fd) {
      int type = 0;
      socklen_t size = sizeof type;
      return (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
    };
    const auto lost = [&] {
      const auto kept = std::count_if(all_.begin(), all_.end(), is_inherited);
      return static_cast<int>(std::min<std::size_t>(all_.size() - kept, 100));
    };
    EXPECT_EQ(lost(), 0);
    EXPECT_EQ(test::in_fork(lost), 0);
  }

 private:
  std::vector<int> all_;
};

// Whenever they are opened, and whatever their ports. Of the others, programs get none.
TEST_P(Connections, LeaveTheProgramsOwnSocketsAlone) {
  const std::set<int> before = test::Leftovers::now().descriptors;
  const auto network = GetParam().make();
  OwnSockets own;
  std::atomic<std::size_t> opened{0};
  std::atomic<bool> over{false};
  std::thread opener([&] {
    for (; !over && own.count() < 500; ++opened) own.open();
  });
  test::Endpoint here(*network), there(*network);
  here->introduce(1, there->address());
  there->introduce(0, here->address());
  EXPECT_TRUE(test::wait_for([&] { return opened > 0; }));
  over = true;
  opener.join();
  if (std::string(GetParam().name) != "Fake") {
    EXPECT_TRUE(own.connect_to_port_in(there->address()));
  }
  TransportRequest sent[2], received[2];
  char byte[2] = {};
  here->receive(1, 5, &byte[0], 1, received[0]);
  there->receive(0, 6, &byte[1], 1, received[1]);
  here->send(1, 6, "x", 1, sent[0]);
  there->send(0, 5, "x", 1, sent[1]);
  ASSERT_TRUE(test::wait_for([&] {
    there.progress();
    here.progress();
    return sent[0].done && sent[1].done && received[0].done && received[1].done;
  }));
  here->close_to_programs();
  there->close_to_programs();
  own.expect_intact();
  for (const int fd : test::Leftovers::now().descriptors) {
    if (before.contains(fd) || own.contains(fd)) continue;
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0)
        << fd << ": " << std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
  }
}

// With 0, 1, 2, ... descriptors to spare, until a second endpoint can be opened.
TEST(UcxEndpoint, SaysThatDescriptorsAreLacking) {
  const test::UcxNetwork network;
  const test::Endpoint first(network);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlim_t used = *test::Leftovers::now().descriptors.rbegin() + 1;
  Status failed(ErrorCode::kTimeout, "not tried");
  for (rlim_t spare = 0; spare < 40 && !failed.ok(); ++spare) {
    const rlimit few{used + spare, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    failed = open_ucx(test::UcxNetwork::loopback(), {{}, /*loopback=*/true}, {}).status();
    setrlimit(RLIMIT_NOFILE, &before);
    if (failed.ok()) break;
    EXPECT_NE(failed.message().find("ulimit -n"), std::string::npos) << failed.message();
  }
  EXPECT_TRUE(failed.ok()) << failed.message();
}

class Sleep : public test::OverEachNetwork {
 protected:
  // When nothing is left to move.
  bool may_sleep(int number) {
    return test::wait_for([&] {
      while (at(number)->progress()) {
      }
      return at(number)->may_sleep();
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Sleep, test::all_networks(), test::name_of_network);

// may_sleep() need not see it, but then sleep() returns at once.
TEST_P(Sleep, IsShortWhileThereIsSomethingToMove) {
  connect(0, 1);
  at(1)->close_to_programs();
  char byte = 0;
  TransportRequest sent, received;
  at(1)->receive(0, 3, &byte, 1, received);
  ASSERT_TRUE(may_sleep(1));
  at(0)->send(1, 3, "x", 1, sent);
  while (at(0)->progress() || !sent.done) {
  }
  while (!received.done) {
    if (at(1)->may_sleep()) at(1)->sleep(kLong);
    at(1)->progress();
  }
  EXPECT_EQ(byte, 'x');
}

TEST_P(Sleep, EndsWhenSomethingComes) {
  connect(0, 1);
  std::atomic<int> slept{0};
  for (const std::size_t bytes : {std::size_t{1}, kMiB}) {
    const std::string data = pattern(bytes, 1);
    std::string place(bytes, ' ');
    const int before = slept;
    std::atomic<bool> over{false};
    std::thread receiver([&] {
      TransportRequest received;
      at(1)->receive(0, 3, place.data(), bytes, received);
      while (!received.done) {
        if (at(1)->progress() || received.done || !at(1)->may_sleep()) continue;
        ++slept;
        at(1)->sleep(kLong);
      }
      over = true;
    });
    EXPECT_TRUE(test::wait_for([&] { return slept > before; }));
    TransportRequest sent;
    at(0)->send(1, 3, data.data(), bytes, sent);
    while (!sent.done || !over) at(0)->progress();
    receiver.join();
    EXPECT_EQ(place, data);
  }
}

TEST_P(Sleep, EndsAtItsLimit) {
  connect(0, 1);
  ASSERT_TRUE(may_sleep(1));
  for (const auto limit : {0us, 100us, 20'000us}) at(1)->sleep(limit);
}

}  // namespace
}  // namespace lockstep::comm
