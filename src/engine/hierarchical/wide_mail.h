// WideMail: point-to-point messages of one rank of a group that spans machines. Messages to ranks of the same machine
// go through the local group's mailbox, all others are letters. Receives are matched in the order in which they were
// asked for, wherever their messages come from. Not thread-safe: the group's lock is held around every call.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "engine/core/machines.h"
#include "engine/local/group.h"
#include "engine/local/mailbox.h"
#include "net/transport.h"
#include "wide_step.h"

namespace lockstep::comm {

// The header of every letter of a group, behind the group's token.
struct WideLetter {
  // kLastWords and kGoodbye carry what the sender has seen fail elsewhere (failure.h).
  enum class Type : std::uint32_t { kMessage, kHello, kNews, kAsk, kAbort, kLastWords, kGoodbye };
  Type type = Type::kMessage;
  std::int32_t source = 0;
  std::int64_t tag = 0;  // of a message; of an abort its code
};

class WideMail {
 public:
  WideMail(const WideContext& context, Communicator::Impl& local, std::string token)
      : layout_(context.layout),
        roster_(context.roster),
        rank_(context.rank),
        transport_(context.transport),
        local_(local),
        token_(std::move(token)) {}

  // `transfer` must live until it is over or withdrawn.
  void start(Transfer& transfer);
  // May leave a receive or send under way in the transport: close that first.
  void withdraw(Transfer& transfer);
  void arrived(const WideLetter& header, const Letter& letter);
  // Moves what can be moved; whether anything did.
  bool pump();
  bool idle() const { return receives_.empty() && under_way_.empty() && local_sends_.empty(); }

 private:
  struct Arrival {
    int source;
    std::int64_t tag;
    std::size_t bytes;
    std::string data;
    void* ticket;  // of a large one
  };
  struct UnderWay {
    Transfer* transfer;
    Parcel parcel;
  };
  bool is_local(int rank) const { return layout_.machine_of(rank) == layout_.machine_of(rank_); }
  bool try_local(Transfer& transfer);
  void deliver(Transfer& transfer, Arrival& arrival);

  const MachineLayout& layout_;
  const Roster& roster_;
  const int rank_;
  Transport& transport_;
  Communicator::Impl& local_;
  const std::string token_;
  std::list<Transfer*> receives_;  // not matched yet
  std::deque<Arrival> unexpected_;
  std::list<UnderWay> under_way_;
  struct LocalSend {
    Transfer* transfer;
    std::shared_ptr<Operation::State> local;
  };
  std::list<LocalSend> local_sends_;
};

}  // namespace lockstep::comm
