// What a channel makes of the parts that come in for it. No test here needs a network.
#include "net/ucx/ucx_inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::comm {
namespace {

using Kind = UcxFrame::Kind;
constexpr std::uint64_t kPeer = 7;
constexpr std::uint64_t kOther = 8;

class Inbox : public testing::Test {
 protected:
  // A part of a message of `whole` that begins at `offset`.
  void put(std::uint64_t from, std::uint64_t tag, const std::string& whole, std::size_t offset, std::size_t bytes,
           Kind kind = Kind::kTagged) {
    inbox_.put({0, from, kind, 0, tag, whole.size(), offset}, {}, whole.data() + offset, bytes);
  }
  void put(std::uint64_t from, std::uint64_t tag, const std::string& whole) { put(from, tag, whole, 0, whole.size()); }
  void end_of(std::uint64_t peer) { inbox_.put({0, peer, Kind::kEnd}, {}, nullptr, 0); }
  void receive(std::uint64_t from, std::uint64_t tag, std::string& place, TransportRequest& request) {
    request.done = false;
    inbox_.receive({from, false, tag}, place.data(), place.size(), request);
  }
  // Each event as a text, in order. Ends the requests.
  std::vector<std::string> events() {
    std::vector<UcxInbox::Event> taken;
    inbox_.take_events(taken);
    std::vector<std::string> texts;
    for (UcxInbox::Event& event : taken) {
      if (auto* const done = std::get_if<UcxInbox::Done>(&event)) {
        done->request->done = true;
        done->request->status = done->status;
        texts.emplace_back(done->status.ok() ? "done" : done->status.message());
      } else if (auto* const arrived = std::get_if<UcxInbox::Arrived>(&event)) {
        texts.push_back(arrived->message.header);
      } else {
        texts.emplace_back("lost");
      }
    }
    return texts;
  }
  using Texts = std::vector<std::string>;

  UcxInbox inbox_;
};

TEST_F(Inbox, GivesMessagesOfOneTagToReceivesInOrder) {
  for (const bool receive_first : {true, false}) {
    std::string first(3, ' '), second(3, ' ');
    TransportRequest requests[2];
    const auto receive_both = [&] {
      receive(kPeer, 1, first, requests[0]);
      receive(kPeer, 1, second, requests[1]);
    };
    if (receive_first) receive_both();
    put(kPeer, 1, "one");
    put(kPeer, 1, "two");
    if (!receive_first) receive_both();
    EXPECT_EQ(events(), (Texts{"done", "done"}));
    EXPECT_EQ(first, "one");
    EXPECT_EQ(second, "two");
  }
}

TEST_F(Inbox, TellsSendersOfEqualTagsApart) {
  std::string from_peer(6, ' '), from_other(6, ' ');
  TransportRequest requests[2];
  receive(kPeer, 1, from_peer, requests[0]);
  receive(kOther, 1, from_other, requests[1]);
  put(kOther, 1, "abcdef", 0, 3);
  put(kPeer, 1, "ABCDEF", 0, 3);
  put(kPeer, 1, "ABCDEF", 3, 3);
  put(kOther, 1, "abcdef", 3, 3);
  EXPECT_EQ(events(), (Texts{"done", "done"}));
  EXPECT_EQ(from_peer, "ABCDEF");
  EXPECT_EQ(from_other, "abcdef");
}

TEST_F(Inbox, TakesAReceiveInTheMiddleOfItsMessage) {
  put(kPeer, 1, "before");
  put(kPeer, 1, "abcdef", 0, 2);
  std::string before(6, ' '), place(6, ' ');
  TransportRequest requests[2];
  receive(kPeer, 1, before, requests[0]);
  receive(kPeer, 1, place, requests[1]);
  EXPECT_EQ(events(), Texts{"done"});
  put(kPeer, 1, "abcdef", 2, 4);
  EXPECT_EQ(events(), Texts{"done"});
  EXPECT_EQ(before, "before");
  EXPECT_EQ(place, "abcdef");
}

TEST_F(Inbox, WritesNoMessageThatIsTooLongOrOutOfOrder) {
  std::string place(4, ' ');
  TransportRequest request;
  receive(kPeer, 1, place, request);
  put(kPeer, 1, "abcdef", 0, 3);
  put(kPeer, 1, "abcdef", 3, 3);
  EXPECT_EQ(events(), Texts{"expected a message of 4 bytes, found 6"});
  receive(kPeer, 1, place, request);
  put(kPeer, 1, "abcd", 2, 2);
  put(kPeer, 1, "abcd", 0, 2);
  EXPECT_EQ(events(), Texts{"the parts of a message came in the wrong order"});
  // The second part names another length, behind whose end it begins.
  receive(kPeer, 1, place, request);
  put(kPeer, 1, "abcdefghij", 0, 8);
  inbox_.put({0, kPeer, Kind::kTagged, 0, /*tag=*/1, /*bytes=*/3, /*offset=*/8}, {}, "x", 1);
  EXPECT_EQ(events(), Texts{"the parts of a message came in the wrong order"});
  EXPECT_EQ(place, "    ");
}

TEST_F(Inbox, KeepsTheOrderOfLastWordsAndTheEnd) {
  inbox_.put({0, kPeer, Kind::kMessage}, "goodbye", nullptr, 0);
  end_of(kPeer);
  end_of(kPeer);
  EXPECT_EQ(events(), (Texts{"goodbye", "lost"}));
}

TEST_F(Inbox, EndsWhatAPeerCannotEndAnyMore) {
  TransportRequest offered, fetched, waiting, late, found;
  std::string place(3, ' ');
  inbox_.keep({nullptr, kPeer, nullptr, 0, &offered});
  inbox_.receive({kPeer, true, 1}, place.data(), 3, fetched);
  receive(kPeer, 1, place, waiting);
  put(kPeer, 2, "one");
  end_of(kPeer);
  const std::string lost = UcxInbox::lost().message();
  EXPECT_EQ(events(), (Texts{lost, lost, "lost"}));
  EXPECT_TRUE(offered.done && fetched.done);
  EXPECT_FALSE(waiting.done) << "what the loss means is for the group to say";
  receive(kPeer, 3, place, late);
  receive(kPeer, 2, place, found);
  EXPECT_EQ(events(), (Texts{lost, "done"}));
  EXPECT_EQ(place, "one");
  inbox_.cancel(UcxInbox::lost());
  EXPECT_EQ(events(), Texts{lost});
  EXPECT_TRUE(waiting.done);
}

TEST_F(Inbox, GivesAnOfferToItsReceiverAloneAndOnce) {
  TransportRequest request;
  const std::uint64_t number = inbox_.keep({nullptr, kPeer, nullptr, 5, &request});
  EXPECT_EQ(inbox_.want(number, kOther), nullptr);
  EXPECT_EQ(inbox_.want(number + 1, kPeer), nullptr);
  const UcxInbox::Offer* const offer = inbox_.want(number, kPeer);
  ASSERT_NE(offer, nullptr);
  EXPECT_EQ(offer->bytes, 5U);
  EXPECT_EQ(inbox_.want(number, kPeer), nullptr);
}

// Its request ends when the receiver has the message and UCX does not need the memory.
TEST_F(Inbox, EndsAnOfferWhenNobodyNeedsItsMemory) {
  for (const bool is_sent_first : {true, false}) {
    for (const bool is_lost : {false, true}) {
      UcxInbox inbox;
      TransportRequest request;
      const std::uint64_t number = inbox.keep({nullptr, kPeer, nullptr, 5, &request});
      ASSERT_NE(inbox.want(number, kPeer), nullptr);
      const auto end = [&] { inbox.put({0, kPeer, is_lost ? Kind::kEnd : Kind::kTaken, 0, number}, {}, nullptr, 0); };
      const auto sent = [&] { inbox.sent(number, {}); };
      const auto ended = [&] {
        std::vector<UcxInbox::Event> taken;
        inbox.take_events(taken);
        return std::count_if(taken.begin(), taken.end(), [&](const UcxInbox::Event& event) {
          const auto* const done = std::get_if<UcxInbox::Done>(&event);
          return done != nullptr && done->request == &request && done->status.ok() != is_lost;
        });
      };
      is_sent_first ? sent() : end();
      EXPECT_EQ(ended(), 0);
      is_sent_first ? end() : sent();
      EXPECT_EQ(ended(), 1);
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
