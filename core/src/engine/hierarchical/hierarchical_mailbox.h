// HierarchicalMailbox: point-to-point messages of one rank of a group that spans machines. Messages to ranks of the
// same machine go through the local group's mailbox; all others are active messages. Receives are matched in the order
// of their calls, wherever the messages come from. Not thread-safe: the group's lock is held around every call.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "control_messages.h"
#include "engine/local/local_group.h"
#include "group_context.h"
#include "net/transport.h"

namespace lockstep::comm {

class HierarchicalMailbox {
 public:
  // `local`: where messages within the machine go.
  HierarchicalMailbox(const GroupContext& context, LocalGroup& local) : context_(context), local_(local) {}

  // Begins a send or receive.
  void start(std::shared_ptr<Operation::State> state);
  // A message has come from another machine.
  void arrived(const ActiveMessageHeader& header, ActiveMessage message);
  // Moves what is under way, without waiting. Whether anything moved.
  bool progress();
  // Ends the operations of transfers that are over. Returns a transfer whose peer was lost in the middle of a message:
  // then the group must break, and the transfer gets the group's error. Null: there is none.
  const Transfer* finish();
  // Ends all transfers with this error. Close the transport first: it may still have their memory.
  void fail(const Status& status);

  bool idle() const { return states_.empty(); }
  // The oldest transfer under way; only if not idle().
  const Transfer& oldest() const { return states_.front()->transfer; }

 private:
  struct Arrival {
    int source;
    std::int64_t tag;
    std::size_t bytes;
    std::string data;
    void* handle;  // of a large message, for the transport
  };
  struct UnderWay {
    Transfer* transfer;
    TransportRequest request;
  };
  struct LocalSend {
    Transfer* transfer;
    std::shared_ptr<LocalOperation> local;
  };
  void start_send(Transfer& transfer);
  void start_local_send(Transfer& transfer);
  bool try_local(Transfer& transfer, MessageLook& look);
  void end(Transfer& transfer);
  void deliver(Transfer& transfer, Arrival& arrival);

  // `here`: the messages of this machine that wait for a receive, if any.
  bool match_receives(std::optional<MessageLook> here);
  bool end_messages();
  bool end_local_sends();

  const GroupContext& context_;
  LocalGroup& local_;
  std::vector<std::shared_ptr<Operation::State>> states_;  // started, and their callers do not know that they are over
  bool some_ended_ = false;                                // finish() has something to do
  std::list<Transfer*> receives_;                          // not matched yet
  std::deque<Arrival> unexpected_;
  std::list<UnderWay> under_way_;
  std::list<LocalSend> local_sends_;
};

}  // namespace lockstep::comm
