// UcxInbox: what has come in for one channel of a shared worker, and what the channel waits for. Any thread that
// progresses the worker puts messages here; the channel's own thread takes the events. Not thread-safe: the worker's
// lock is held around every call.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "net/transport.h"

namespace lockstep::comm {

struct UcxConnection;

inline constexpr unsigned kUcxMessageId = 1;

// The header of every active message of UCX that one channel sends to another. A channel is the part of a
// shared worker that belongs to one group.
struct UcxFrame {
  enum class Kind : std::uint32_t {
    kOpen,     // the sender counts on this connection. The data are the sender's UCX address
    kEnd,      // the sender has closed: nothing more comes from it
    kTagged,   // a part of a tagged message
    kMessage,  // an active message. Its header follows the frame
    kOffer,    // a large active message that stays with its sender. Its header follows the frame
    kWanted,   // the receiver of an offer wants the message
    kOffered,  // a part of this message
    kTaken,    // the receiver of an offer has the message, or does not want it
  };
  std::uint64_t to = 0;    // the receiver's channel
  std::uint64_t from = 0;  // the sender's channel
  Kind kind = Kind::kOpen;
  std::uint32_t padding = 0;
  std::uint64_t tag = 0;     // the tag, or the number of the offer
  std::uint64_t bytes = 0;   // of the whole message
  std::uint64_t offset = 0;  // where this part begins
};
static_assert(sizeof(UcxFrame) == 48);

class UcxInbox {
 public:
  // Events are taken in the order in which they came: a peer's last words before its end.
  struct Done {
    TransportRequest* request;
    Status status;
  };
  struct Arrived {
    ActiveMessage message;
    std::uint64_t from;
    std::uint64_t offer;  // the number of an offer
  };
  struct Lost {
    std::uint64_t from;
  };
  using Event = std::variant<Done, Arrived, Lost>;

  // A large active message of this channel that its receiver has not got yet.
  struct Offer {
    std::shared_ptr<UcxConnection> connection;
    std::uint64_t to;
    const void* data;
    std::size_t bytes;
    TransportRequest* request;
    bool is_sending = false;  // UCX has its memory
    bool is_over = false;
    Status status = {};  // valid once it is over
  };

  // Messages of one key meet receives of this key in order.
  struct Key {
    std::uint64_t from;
    bool is_offered;  // `tag` is the number of an offer
    std::uint64_t tag;
    auto operator<=>(const Key&) const = default;
  };

  // Puts in what a peer has sent: `text` follows the frame. True: this is the end of a message that the peer has
  // offered.
  bool put(const UcxFrame& frame, std::string_view text, const void* data, std::size_t bytes);
  void receive(const Key& key, void* data, std::size_t bytes, TransportRequest& request);
  void end(TransportRequest* request, Status status) { add(Done{request, std::move(status)}); }
  // No more messages come from this peer.
  void lose(std::uint64_t from);
  bool has_lost(std::uint64_t from) const { return lost_.contains(from); }

  // Remembers an offer, and returns its number.
  std::uint64_t keep(const Offer& offer);
  // This peer wants the offer: UCX is to send it. Null: there is no such offer for the peer.
  const Offer* want(std::uint64_t number, std::uint64_t from);
  // UCX has sent the offer.
  void sent(std::uint64_t number, const Status& status);

  // Ends every receive and offer.
  void cancel(const Status& why);

  // Counts what has come, parts of messages included.
  std::uint64_t count() const { return count_; }
  void count_part() { ++count_; }
  bool has_news() const { return count_ != taken_; }
  // Why messages to and from a peer that is lost fail.
  static const Status& lost();

  // Whether anything has come since the last call.
  bool take_events(std::vector<Event>& events);

  // The peers that count on a connection to this channel, with their UCX addresses.
  const std::map<std::uint64_t, std::string>& openers() const { return openers_; }
  // The worker at this address is gone.
  void forget_openers(const std::string& address) {
    std::erase_if(openers_, [&](const auto& opener) { return opener.second == address; });
  }

 private:
  struct Receive {
    std::byte* data;
    std::size_t bytes;
    TransportRequest* request;
    std::uint64_t arrived = 0;
    bool is_whole = true;  // no part is missing or in the wrong place
  };
  struct Early {  // a message that nobody waits for yet
    std::uint64_t bytes;
    std::string arrived;
  };
  struct Lane {
    std::deque<Receive> receives;  // if there are any, there are no early messages
    std::deque<Early> early;       // only the last may be incomplete
  };
  template <typename T>
  void add(T event) {
    events_.emplace_back(std::move(event));
    ++count_;
  }
  bool put_part(const UcxFrame& frame, const void* data, std::size_t bytes);
  static void add_part(Receive& receive, std::uint64_t total, std::uint64_t offset, const void* data,
                       std::size_t bytes);
  void finish(const Receive& receive, std::uint64_t total);
  void forget_if_empty(const Key& key);
  // Ends the offer's request once UCX does not need its memory.
  void end_if_over(std::map<std::uint64_t, Offer>::iterator offer);

  std::vector<Event> events_;
  std::uint64_t count_ = 0;
  std::uint64_t taken_ = 0;
  std::map<Key, Lane> lanes_;
  std::map<std::uint64_t, Offer> offers_;
  std::uint64_t last_offer_ = 0;
  std::map<std::uint64_t, std::string> openers_;
  std::set<std::uint64_t> lost_;
};

}  // namespace lockstep::comm
