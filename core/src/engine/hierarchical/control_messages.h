// The active messages of a group that spans machines: their format, and those in which ranks tell one another how they
// are.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "group_context.h"
#include "peers.h"

namespace lockstep::comm {

// The format of the active messages of a group: the group's token, a header, and data or text.
struct ActiveMessageHeader {
  // kMessage is point-to-point data (HierarchicalMailbox); all others are for ControlMessages. kCause and kGoodbye
  // carry the sender's known cause (failure.h).
  enum class Type : std::uint32_t { kMessage, kHello, kNews, kAsk, kAbort, kCause, kGoodbye };
  Type type = Type::kMessage;
  std::int32_t source = 0;
  // Of a message its tag; of an abort its error code; of a kAsk 1 if the sender gives up; of a kNews 1 if somebody has
  // asked, so that the news tell why ranks stand still.
  std::int64_t tag = 0;
};

std::string pack_header(const ActiveMessageHeader& header, const std::string& token);
// Nothing if the message is not from a member of the group. Other programs can reach the port, but they do not know the
// token.
std::optional<ActiveMessageHeader> unpack_header(std::string_view text, const std::string& token, int group_size);

// News of one rank.
struct RankNews {
  std::uint64_t call = 0;      // call_word() of its last call
  std::string condition;       // why it stands still; empty: it runs, or nobody asked
  std::string waits_for = {};  // Peers::waits_for()
  SentPlace place = {};        // from where it made the call; empty: not known
};
std::string pack_news(const std::vector<RankNews>& news);
// The news of `count` ranks, or of the first of them if the text ends too early.
std::vector<RankNews> unpack_news(std::string_view text, std::size_t count);

// ControlMessages: the active messages in which the ranks of a group tell their neighbours how they are: hellos, news
// of calls, known causes, aborts, goodbyes. What others tell goes to Peers and the CallBoard. Not thread-safe: the
// group's lock is held around every call.
class ControlMessages {
 public:
  using Type = ActiveMessageHeader::Type;

  ControlMessages(const GroupContext& context, Peers& peers, const CallBoard& board)
      : context_(context), peers_(peers), board_(board) {}

  // An abort or a goodbye goes to every connected rank, because each of them will see the connection end.
  void tell_neighbours(Type type, const std::string& text, std::int64_t value = 0);
  // Opens a connection to `rank` unless this rank needs none or has one.
  void reach(int rank);
  // What the ranks of this machine have called, and with `conditions` why they stand still.
  void send_news(bool conditions);
  // Asks the neighbours for news. Answers from before do not count any more. `gives_up`: because a wait of this rank
  // has reached its timeout, as the neighbours are told.
  void ask(bool gives_up);

  // Called by the transport's handler.
  void arrived(const ActiveMessageHeader& header, std::string_view text);
  // Answers the neighbours that have asked.
  void progress();

  // Whether all messages have left this rank.
  bool all_sent() const { return outgoing_.empty(); }
  // The error with which another rank has broken the group; ok: none has.
  const Status& reported_break() const { return reported_break_; }
  // Forgets the messages that have not left. Close the transport first.
  void clear() { outgoing_.clear(); }

 private:
  struct Outgoing {
    TransportRequest request;
    std::string text;
  };
  void take_news(int source, bool conditions, std::string_view text);

  const GroupContext& context_;
  Peers& peers_;
  const CallBoard& board_;
  std::deque<Outgoing> outgoing_;
  bool asked_ = false;  // a neighbour wants news
  Status reported_break_;
};

}  // namespace lockstep::comm
