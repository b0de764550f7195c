// HierarchicalMailbox: point-to-point messages of one rank of a group that spans machines. Messages to ranks of the
// same machine go through the local group's mailbox; all others are active messages. Receives are matched in the order
// of their calls, wherever the messages come from. Not thread-safe: the group's lock is held around every call.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "engine/core/topology.h"
#include "engine/local/local_group.h"
#include "engine/local/mailbox.h"
#include "net/transport.h"
#include "step.h"

namespace lockstep::comm {

// The header of every active message of a group. It follows the group's token.
struct ActiveMessageHeader {
  // kCause and kGoodbye carry the sender's known cause (failure.h).
  enum class Type : std::uint32_t { kMessage, kHello, kNews, kAsk, kAbort, kCause, kGoodbye };
  Type type = Type::kMessage;
  std::int32_t source = 0;
  std::int64_t tag = 0;  // of a message its tag; of an abort its error code
};

class HierarchicalMailbox {
 public:
  HierarchicalMailbox(const StepContext& context, LocalGroup& local, std::string token)
      : topology_(context.topology),
        roster_(context.roster),
        rank_(context.rank),
        transport_(context.transport),
        local_(local),
        token_(std::move(token)) {}

  // `transfer` must exist until it is over or withdrawn.
  void start(Transfer& transfer);
  // Close the transport first: it may still have the send or receive under way.
  void withdraw(Transfer& transfer);
  void arrived(const ActiveMessageHeader& header, const ActiveMessage& message);
  // Moves what is under way, without waiting. Whether anything moved.
  bool progress();
  bool idle() const { return receives_.empty() && under_way_.empty() && local_sends_.empty(); }

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
  bool is_local(int rank) const { return topology_.machine_of(rank) == topology_.machine_of(rank_); }
  bool try_local(Transfer& transfer);
  void deliver(Transfer& transfer, Arrival& arrival);

  const Topology& topology_;
  const Roster& roster_;
  const int rank_;
  Transport& transport_;
  LocalGroup& local_;
  const std::string token_;
  std::list<Transfer*> receives_;  // not matched yet
  std::deque<Arrival> unexpected_;
  std::list<UnderWay> under_way_;
  struct LocalSend {
    Transfer* transfer;
    std::shared_ptr<LocalOperation> local;
  };
  std::list<LocalSend> local_sends_;
};

}  // namespace lockstep::comm
