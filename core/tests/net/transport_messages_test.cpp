// What every transport promises of messages, run by the fake one and by UCX.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <list>
#include <random>

#include "net/networks.h"
#include "support/effort.h"
#include "support/sizes.h"

namespace lockstep::comm {
namespace {

using test::pattern;
using test::Place;

constexpr std::size_t kEager = Transport::kEagerBytes;
using test::kMiB;

class TaggedMessages : public test::OverEachNetwork {};
INSTANTIATE_TEST_SUITE_P(Over, TaggedMessages, test::all_networks(), test::name_of_network);

TEST_P(TaggedMessages, OfAnySizeArriveWhetherTheReceiveComesFirstOrNot) {
  std::uint64_t tag = 0;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{8191}, std::size_t{8193},
                                  kEager - 1, kEager, kEager + 1, 4 * kEager + 3, 4 * kMiB}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes, receive " << (receive_first ? "first" : "last"));
      const std::string data = pattern(bytes, ++tag);
      Place place(bytes);
      TransportRequest sent, received;
      if (receive_first) at(1)->receive(0, tag, place.data(), bytes, received);
      at(0)->send(1, tag, data.data(), bytes, sent);
      progress_for_a_while();
      if (!receive_first) at(1)->receive(0, tag, place.data(), bytes, received);
      ASSERT_TRUE(finish(sent) && finish(received));
      ASSERT_TRUE(sent.status.ok()) << sent.status.message();
      ASSERT_TRUE(received.status.ok()) << received.status.message();
      ASSERT_EQ(place.text(), data);
      ASSERT_TRUE(place.intact());
    }
  }
}

TEST_P(TaggedMessages, WithEqualTagsArriveInTheOrderOfSending) {
  constexpr int kMessages = 60;
  constexpr std::array<std::size_t, 5> kSizes{3, 0, 20'000, kEager + 1, 300'000};
  const auto size = [&](int i) { return kSizes[i % kSizes.size()]; };
  std::vector<std::string> data;
  std::list<Place> places;
  std::array<TransportRequest, kMessages> sent, received;
  for (int i = 0; i < kMessages; ++i) data.push_back(pattern(size(i), i));
  const auto receive = [&](int i) {
    places.emplace_back(size(i));
    at(1)->receive(0, 7, places.back().data(), size(i), received[i]);
  };
  for (int i = 0; i < kMessages / 2; ++i) receive(i);
  for (int i = 0; i < kMessages; ++i) at(0)->send(1, 7, data[i].data(), size(i), sent[i]);
  progress_for_a_while();
  for (int i = kMessages / 2; i < kMessages; ++i) receive(i);
  auto place = places.begin();
  for (int i = 0; i < kMessages; ++i, ++place) {
    ASSERT_TRUE(finish(sent[i]) && finish(received[i]));
    ASSERT_TRUE(received[i].status.ok()) << received[i].status.message();
    ASSERT_EQ(place->text(), data[i]) << i;
  }
}

TEST_P(TaggedMessages, MeetNoReceiveOfAnotherTag) {
  constexpr std::uint64_t kTags[] = {1, std::uint64_t{1} << 32, std::uint64_t{1} << 63, ~std::uint64_t{0}};
  std::array<TransportRequest, 4> sent, received;
  std::array<std::uint64_t, 4> got{};
  for (int i = 0; i < 4; ++i) at(0)->send(1, kTags[i], &kTags[i], sizeof kTags[i], sent[i]);
  for (int i = 3; i >= 0; --i) {
    at(1)->receive(0, kTags[i], &got[i], sizeof got[i], received[i]);
    ASSERT_TRUE(finish(received[i]));
    EXPECT_EQ(got[i], kTags[i]);
    for (int later = 0; later < i; ++later) EXPECT_EQ(got[later], 0U);
  }
  for (const TransportRequest& request : sent) EXPECT_TRUE(finish(request));
}

TEST_P(TaggedMessages, OfAnotherLengthAreAMismatchOfThatReceiveAlone) {
  std::uint64_t tag = 0;
  for (const auto& [bytes, expected] : {std::pair{std::size_t{1}, std::size_t{0}},
                                        {9, 8},
                                        {kEager + 1, kEager},
                                        {kMiB, 16},
                                        {kMiB, kMiB - 1},
                                        {0, 1},
                                        {8, 9},
                                        {kMiB, kMiB + 1}}) {
    for (const bool receive_first : {true, false}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes for " << expected << ", " << receive_first);
      const std::string data = pattern(bytes, ++tag);
      Place other(expected), right(bytes);
      std::array<TransportRequest, 2> sent, received;
      if (receive_first) at(1)->receive(0, tag, other.data(), expected, received[0]);
      for (TransportRequest& request : sent) at(0)->send(1, tag, data.data(), bytes, request);
      progress_for_a_while();
      if (!receive_first) at(1)->receive(0, tag, other.data(), expected, received[0]);
      at(1)->receive(0, tag, right.data(), bytes, received[1]);
      ASSERT_TRUE(finish(received[0]) && finish(received[1]) && finish(sent[0]) && finish(sent[1]));
      EXPECT_EQ(received[0].status.code(), ErrorCode::kMismatch);
      EXPECT_EQ(received[0].status.message(), fmt::format("expected a message of {} bytes, found {}", expected, bytes));
      EXPECT_TRUE(other.untouched());
      EXPECT_TRUE(received[1].status.ok()) << received[1].status.message();
      EXPECT_EQ(right.text(), data);
    }
  }
}

class ActiveMessages : public test::OverEachNetwork {};
INSTANTIATE_TEST_SUITE_P(Over, ActiveMessages, test::all_networks(), test::name_of_network);

TEST_P(ActiveMessages, UpToTheEagerSizeArriveWholeAndInOrder) {
  std::vector<std::pair<std::string, std::string>> messages;
  for (const std::size_t header : {1, 40, 256}) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, kEager - 1, kEager})
      messages.emplace_back(pattern(header, bytes), pattern(bytes, header));
  }
  std::list<TransportRequest> sent;
  for (const auto& [header, data] : messages) {
    const std::string passing = header;  // it is copied
    at(0)->post(1, passing, data.data(), data.size(), sent.emplace_back());
  }
  ASSERT_TRUE(until([&] { return at(1).arrived().size() == messages.size(); })) << at(1).arrived().size();
  for (const TransportRequest& request : sent) EXPECT_TRUE(finish(request) && request.status.ok());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& arrived = at(1).arrived()[i];
    EXPECT_EQ(arrived.header, messages[i].first) << i;
    EXPECT_EQ(arrived.data, messages[i].second) << i;
    EXPECT_EQ(arrived.bytes, messages[i].second.size()) << i;
    EXPECT_EQ(arrived.handle, nullptr) << i;
  }
}

TEST_P(ActiveMessages, LargeOnesStayWithTheirSenderUntilTheyAreFetched) {
  for (const std::size_t bytes : {kEager + 1, kMiB, 4 * kMiB + 5}) {
    SCOPED_TRACE(bytes);
    const std::string data = pattern(bytes, bytes);
    Place place(bytes);
    TransportRequest sent, fetched;
    at(0)->post(1, "large", data.data(), bytes, sent);
    ASSERT_TRUE(until([&] { return !at(1).arrived().empty(); }));
    const auto arrived = at(1).arrived().front();
    at(1).arrived().pop_front();
    EXPECT_EQ(arrived.header, "large");
    EXPECT_EQ(arrived.bytes, bytes);
    ASSERT_NE(arrived.handle, nullptr);
    progress_for_a_while();
    EXPECT_FALSE(sent.done);
    at(1)->fetch(arrived.handle, place.data(), bytes, fetched);
    ASSERT_TRUE(finish(fetched) && finish(sent));
    EXPECT_TRUE(fetched.status.ok()) << fetched.status.message();
    EXPECT_TRUE(sent.status.ok()) << sent.status.message();
    EXPECT_EQ(place.text(), data);
    EXPECT_TRUE(place.intact());
  }
}

TEST_P(ActiveMessages, LargeOnesThatAreDiscardedOrRefusedEndAtTheirSender) {
  const std::string data = pattern(kMiB, 1);
  TransportRequest discarded, refused, small;
  at(0)->post(1, "", data.data(), data.size(), discarded);
  ASSERT_TRUE(until([&] { return !at(1).arrived().empty(); }));
  at(1)->discard(at(1).arrived().front().handle);
  EXPECT_TRUE(finish(discarded));
  at(1).refuse_all();
  at(0)->post(1, "not for you", data.data(), data.size(), refused);
  at(0)->post(1, "nor this", data.data(), 10, small);
  EXPECT_TRUE(finish(refused) && finish(small));
  EXPECT_TRUE(until([&] { return at(1).refused() == 2; }));
  EXPECT_EQ(at(1).arrived().size(), 1U);
}

TEST_P(ActiveMessages, AreFetchedInAnyOrder) {
  std::vector<std::string> data;
  std::list<TransportRequest> sent, fetched;
  std::list<Place> places;
  for (int i = 0; i < 4; ++i) data.push_back(pattern(kEager + 1 + i, i));
  for (int i = 0; i < 4; ++i) {
    at(0)->post(1, std::to_string(i), data[i].data(), data[i].size(), sent.emplace_back());
  }
  ASSERT_TRUE(until([&] { return at(1).arrived().size() == 4; }));
  for (int i = 3; i >= 0; --i) {
    const auto& arrived = at(1).arrived()[i];
    places.emplace_back(arrived.bytes);
    at(1)->fetch(arrived.handle, places.back().data(), arrived.bytes, fetched.emplace_back());
  }
  for (const auto* requests : {&sent, &fetched}) {
    for (const TransportRequest& request : *requests) EXPECT_TRUE(finish(request) && request.status.ok());
  }
  auto place = places.begin();
  for (int i = 3; i >= 0; --i) EXPECT_EQ((place++)->text(), data[std::stoi(at(1).arrived()[i].header)]);
}

class MixedMessages : public test::OverEachNetwork {
 protected:
  struct Message {
    int from, to;
    std::uint64_t tag;
    std::string data;
    Place place;
    TransportRequest sent, received;
  };
  std::list<Message> messages_;

  void make(std::mt19937_64& random, int count) {
    messages_.clear();
    for (int i = 0; i < count; ++i) {
      const int from = static_cast<int>(random() % kEndpoints);
      const int to = static_cast<int>((from + 1 + random() % (kEndpoints - 1)) % kEndpoints);
      const std::size_t bytes = random() % 8 == 0 ? random() % (4 * kEager) : random() % 5000;
      const auto tag = static_cast<std::uint64_t>(from * 100 + to * 10) + random() % 3;
      messages_.push_back({from, to, tag, pattern(bytes, random()), Place(bytes), {}, {}});
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Over, MixedMessages, test::all_networks(), test::name_of_network);

// Among all pairs, in both directions at once, with receives before and after what they are for.
TEST_P(MixedMessages, BetweenAllPairsArriveWhole) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    make(random, test::repetitions(400));
    auto to_send = messages_.begin();
    auto to_receive = messages_.begin();
    while (to_send != messages_.end() || to_receive != messages_.end()) {
      if (to_send != messages_.end() && random() % 2 == 0) {
        at(to_send->from)->send(to_send->to, to_send->tag, to_send->data.data(), to_send->data.size(), to_send->sent);
        ++to_send;
      }
      if (to_receive != messages_.end() && random() % 2 == 0) {
        at(to_receive->to)
            ->receive(to_receive->from, to_receive->tag, to_receive->place.data(), to_receive->place.bytes(),
                      to_receive->received);
        ++to_receive;
      }
      if (random() % 4 == 0) at(static_cast<int>(random() % kEndpoints))->progress();
    }
    for (const Message& message : messages_) {
      ASSERT_TRUE(finish(message.sent) && finish(message.received));
      ASSERT_TRUE(message.received.status.ok()) << message.received.status.message();
      ASSERT_TRUE(message.place.text() == message.data && message.place.intact());
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
