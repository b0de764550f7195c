// ControlMessages: the active messages in which the ranks of a group tell their neighbours how they are: hellos, news
// of calls, known causes, aborts, goodbyes. What others tell goes to Peers and the CallBoard. Not thread-safe: the
// group's lock is held around every call.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "active_message.h"
#include "call_board.h"
#include "group_context.h"
#include "peers.h"

namespace lockstep::comm {

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
  // Asks the neighbours for news. Answers from before do not count any more.
  void ask();

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
  void take_news(int source, std::string_view text);

  const GroupContext& context_;
  Peers& peers_;
  const CallBoard& board_;
  std::deque<Outgoing> outgoing_;
  bool asked_ = false;  // a neighbour wants news
  Status reported_break_;
};

}  // namespace lockstep::comm
