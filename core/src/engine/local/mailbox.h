// Mailbox: point-to-point messages of one rank. Not thread-safe: the group's lock is held around every call.
//
// A small message travels inside an entry of the ring between two ranks. A large one stays in the sender's arena: the
// receiver copies it and then sets a flag. If it lies in private memory, the sender first copies it to its arena in
// chunks, and the receiver fetches these meanwhile (PipelinedSend, control.h). Messages without a receive are taken out
// of the ring, so an unmatched message never blocks the ones behind it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collective.h"
#include "engine/core/group.h"
#include "group_memory.h"
#include "reduce/copy_choice.h"
#include "waiting.h"

namespace lockstep::comm {

// One look of several receives, the oldest first, at the messages that have arrived. What arrives, or has its last byte
// written, during the look must not reach a younger receive that an older one of the same tag would have taken.
struct MessageLook {
  std::uint64_t end = 0;              // messages with this number and later ones have arrived after it began
  std::vector<std::uint64_t> passed;  // messages of older receives, which take them when they are written
};

class Mailbox {
 public:
  Mailbox(const GroupMemory& memory, const Waiting& waiting);
  // Memory that receivers have not copied yet is not freed.
  ~Mailbox();

  // Begins a blocking call's transfer, which must exist until it is over or withdrawn.
  void start(Transfer& transfer);
  void withdraw(Transfer& transfer);
  // The same for a transfer that its caller has started. The mailbox keeps the operation, and ends it.
  void start(const std::shared_ptr<LocalOperation>& operation);
  void fail(LocalOperation& operation, Status status);
  // Begins a look at what has arrived.
  MessageLook look() const { return {arrivals_, {}}; }
  // Receives a message that has arrived completely. If none matches: false, and no receive is left behind.
  bool try_receive(Transfer& transfer, MessageLook& look);
  // Whether another rank may still read the memory of this send.
  bool is_outgoing(const Transfer& transfer) const;
  // Moves what is under way, without waiting. In a broken group it delivers nothing more, because callers whose
  // operations have failed may have freed their buffers.
  void progress();
  // Whether progress() may have something to do: for operations of this rank, or for peers that need room in a ring.
  bool has_work() const { return !idle() || has_arrivals(); }
  bool idle() const { return sends_ == 0 && receives_.empty() && fetching_.empty() && outgoing_.empty(); }
  bool has_unexpected() const { return !unexpected_.empty(); }
  // The started transfers that are not over.
  const std::list<std::shared_ptr<LocalOperation>>& started() const { return started_; }

 private:
  struct Arrival {  // a message that has arrived
    int from;
    std::int64_t tag;
    std::size_t bytes;
    const std::byte* data;                 // in the entry; large: in the sender's arena; null: in `kept`
    std::atomic<std::uint32_t>* consumed;  // null: a message of up to kEagerBytes
    PipelinedSend* pipelined;              // null: the whole message is there
    std::string kept = {};                 // of a message of up to kEagerBytes without a receive
    std::uint64_t number = 0;              // in the order in which they came
  };
  struct Fetching {  // a receive whose message comes in chunks
    Transfer* transfer;
    Arrival arrival;
    std::uint64_t chunks = 0;  // fetched
  };
  struct Outgoing {  // a large message that the receiver has not copied yet
    ArenaBlock staging;
    ArenaBlock flag;
    Transfer* transfer;  // null: the send is over for its caller
    std::atomic<std::uint32_t>* consumed() const { return reinterpret_cast<std::atomic<std::uint32_t>*>(flag.data()); }
  };

  bool has_arrivals() const;
  void end(Transfer& transfer);
  void finish_ended();
  void move_messages();
  bool try_send(Transfer& transfer);
  bool has_room(int to);
  Status send_large(Transfer& transfer, Message& message);
  Status open_pipelined_send(Outgoing& outgoing, Message& message, std::size_t bytes);
  void write_chunks(const ConstPiece& source, const Message& message);
  bool fetch_chunks(Fetching& fetching);
  void end_receive(Transfer& receive, const Arrival& arrival);
  void fetch_from(int source);
  // `look`: only of that look, and only if all of the message has been written; null: any.
  bool take_unexpected(Transfer& transfer, MessageLook* look);
  void keep(Arrival arrival);
  Status reach(int source, const Message& message) const;
  Arrival open(int source, Message& message) const;
  static bool takes_from(const Transfer& receive, int source) {
    return receive.peer == kAnySource || receive.peer == source;
  }
  void deliver(Transfer& receive, const Arrival& arrival);

  const GroupMemory& memory_;
  const Waiting& waiting_;
  std::vector<std::uint64_t> sent_;                   // by destination
  std::vector<std::uint64_t> known_taken_;            // by destination: MessageRing::taken, as last read
  std::vector<std::uint64_t> received_;               // by source
  std::vector<std::deque<Transfer*>> waiting_sends_;  // by destination: for room in its ring
  std::size_t sends_ = 0;                             // that wait
  // By tag; of one tag in the order of their calls, and in the order in which they came.
  std::multimap<std::int64_t, Transfer*> receives_;
  std::multimap<std::int64_t, Arrival> unexpected_;
  std::uint64_t arrivals_ = 0;  // messages that were put into it
  std::list<Fetching> fetching_;
  std::list<Outgoing> outgoing_;
  std::list<std::shared_ptr<LocalOperation>> started_;
  std::vector<Operation::State*> ended_;  // of started_; empty between calls
  CopyChoice choice_;                     // how pipelined sends are written
};

}  // namespace lockstep::comm
