// The faults of the fake network. What it promises without them is in transport_*_test.cpp.
#include "support/fake_transport.h"

#include <gtest/gtest.h>

#include <array>
#include <list>
#include <string>
#include <vector>

#include "net/networks.h"

namespace lockstep::comm {
namespace {

class FakeNetworkWithFaults : public testing::Test {
 protected:
  static constexpr int kEndpoints = 3;

  FakeNetworkWithFaults() {
    for (int i = 0; i < kEndpoints; ++i) endpoints_.emplace_back(network_);
    for (int i = 0; i < kEndpoints; ++i) {
      for (int other = 0; other < kEndpoints; ++other) at(i)->introduce(other, at(other)->address());
    }
  }

  test::Endpoint& at(int number) { return *std::next(endpoints_.begin(), number); }
  const test::FakeSwitch& faults() const { return network_.faults(); }
  std::string address(int number) { return at(number)->address(); }
  // Everything that can move has moved.
  void progress() {
    for (bool moved = true; moved;) {
      moved = false;
      for (const test::Endpoint& endpoint : endpoints_) moved = endpoint.progress() || moved;
    }
  }
  // An active message without data: its text is its header.
  void say(int from, int to, const std::string& text) {
    at(from)->post(to, text, nullptr, 0, requests_.emplace_back());
  }
  std::vector<std::string> heard(int number) {
    std::vector<std::string> all;
    for (const auto& arrived : at(number).arrived()) all.push_back(arrived.header);
    at(number).arrived().clear();
    return all;
  }
  std::list<TransportRequest>& requests() { return requests_; }

 private:
  std::list<TransportRequest> requests_;  // outlive the endpoints
  test::FakeNetwork network_;
  std::list<test::Endpoint> endpoints_;
};

using Texts = std::vector<std::string>;

TEST_F(FakeNetworkWithFaults, DelaysOneDirectionBetweenTwo) {
  faults().hold(address(0), address(2));
  say(0, 2, "first");
  say(1, 2, "second");
  say(2, 0, "back");
  progress();
  EXPECT_EQ(heard(2), Texts{"second"});
  EXPECT_EQ(heard(0), Texts{"back"});
  for (const TransportRequest& request : requests()) EXPECT_TRUE(request.done && request.status.ok());
  faults().release(address(0), address(2));
  EXPECT_FALSE(at(2)->may_sleep());
  progress();
  EXPECT_EQ(heard(2), Texts{"first"});
}

TEST_F(FakeNetworkWithFaults, DelaysTheEndOfAPeerBehindItsMessages) {
  say(2, 0, "connected");
  const std::string leaver = address(0);
  faults().hold(leaver, address(2));
  say(0, 2, "last words");
  progress();
  at(0).destroy();
  progress();
  EXPECT_FALSE(at(2)->is_lost(0));
  faults().release(leaver, address(2));
  progress();
  EXPECT_EQ(heard(2), Texts{"last words"});
  EXPECT_TRUE(at(2)->is_lost(0));
}

TEST_F(FakeNetworkWithFaults, ShufflesSendersAndKeepsTheOrderOfEach) {
  constexpr int kMessages = 40;
  std::vector<Texts> orders;
  for (const std::uint64_t seed : {0, 1, 2}) {
    if (seed > 0) faults().shuffle(seed);
    for (int i = 0; i < kMessages; ++i) {
      for (const int from : {0, 1}) say(from, 2, std::to_string(from) + " " + std::to_string(i));
    }
    // All of them are on the way before the first arrives.
    while (at(0).progress() || at(1).progress()) {
    }
    progress();
    orders.push_back(heard(2));
    std::array<int, 2> next{};
    for (const std::string& text : orders.back()) {
      const int from = text[0] - '0';
      EXPECT_EQ(text, std::to_string(from) + " " + std::to_string(next[from]++));
    }
    EXPECT_EQ(next, (std::array<int, 2>{kMessages, kMessages}));
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST_F(FakeNetworkWithFaults, LosesAPeerWithAllThatHasNotArrived) {
  say(1, 0, "arrived");
  progress();
  const std::string large(Transport::kEagerBytes + 1, 'x');
  TransportRequest posted, sent, expected;
  char byte = 0;
  faults().hold(address(0), address(1));
  faults().hold(address(1), address(0));
  at(0)->post(1, "large", large.data(), large.size(), posted);
  say(1, 0, "on the way");
  progress();
  faults().lose(address(1));
  faults().release(address(0), address(1));
  faults().release(address(1), address(0));
  at(0)->send(1, 5, &byte, 1, sent);
  at(0)->receive(1, 5, &byte, 1, expected);
  progress();
  EXPECT_EQ(heard(0), Texts{"arrived"});
  EXPECT_TRUE(heard(1).empty());
  EXPECT_TRUE(at(0)->is_lost(1));
  EXPECT_TRUE(at(1)->is_lost(0));
  for (const TransportRequest* request : {&posted, &sent}) {
    EXPECT_TRUE(request->done);
    EXPECT_EQ(request->status.code(), ErrorCode::kPeerFailed);
  }
  EXPECT_FALSE(expected.done) << "with UCX only close() ends it";
  say(0, 2, "others go on");
  progress();
  EXPECT_EQ(heard(2), Texts{"others go on"});
  at(0)->close(false, std::chrono::milliseconds(0));
  EXPECT_TRUE(expected.done);
}

}  // namespace
}  // namespace lockstep::comm
