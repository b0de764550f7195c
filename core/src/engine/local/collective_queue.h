// CollectiveQueue: the collectives of one rank that are not over. They are posted in the order of their sequence
// numbers, each once its slot is free on every rank. A collective without a free slot waits in a queue. A wait in
// start() could hang: another rank may be starting collectives of another group first. Not thread-safe: the group's
// lock is held around every call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "collective.h"
#include "group_memory.h"
#include "waiting.h"

namespace lockstep::comm {

class CollectiveQueue {
 public:
  CollectiveQueue(const GroupMemory& memory, const Waiting& waiting) : memory_(memory), waiting_(waiting) {}

  // Posts a collective with the next number, now or when it is its turn. If its post fails, the group breaks.
  // `operation`: what owns it; null: a blocking call, which keeps it until it is over or removed.
  Status add(Collective& collective, std::shared_ptr<LocalOperation> operation);
  // After a failure. A posted collective stays until no rank uses its buffers.
  void remove(Collective& collective);

  // Moves every collective, and ends the operations of those that are over. With `help`, also does tickets of other
  // ranks.
  void progress(bool help);
  // The usual case of a blocking call: nothing else is under way, and the other ranks post within microseconds. Whether
  // the collective is over.
  bool finish_at_once(Collective& collective);
  // Removes what is over, and tells the other ranks how far this rank has come.
  void remove_finished();

  // A SmallCall posts and ends by itself. It may if nothing else is under way and its slot is free.
  bool admits_small_call() { return pending_.empty() && admits(); }
  void begin_small_call(std::uint64_t sequence) { posted_ = sequence; }
  void end_small_call() { publish_completed(); }
  // Continues one that cannot end by itself.
  void adopt_small_call(Collective& collective) { pending_.push_back(&collective); }

  bool empty() const { return pending_.empty() && queue_.empty(); }
  // Whether every collective has been posted.
  bool all_posted() const { return queue_.empty(); }
  bool is_oldest(const Collective& collective) const { return pending_.front() == &collective; }
  // Whether all ranks have posted some collective that is not over.
  bool has_met() const;
  // The number of the collective that has to be over, on all ranks, before the next is posted.
  std::uint64_t awaited() const { return posted_ + 1 - kRing; }
  bool has_started() const {
    return !started_.empty() || (!queue_.empty() && std::any_of(queue_.begin(), queue_.end(), is_started));
  }
  std::size_t under_way() const { return started_.size() + queue_.size(); }
  // The started operations; none of them ends by itself any more.
  std::vector<std::shared_ptr<LocalOperation>> give_up_started();

 private:
  struct Queued {
    Collective* collective;
    std::shared_ptr<LocalOperation> operation;
  };
  static bool is_started(const Queued& queued) { return queued.operation != nullptr; }

  bool slot_is_free();
  bool admits() { return queue_.empty() && slot_is_free(); }
  Status post(Collective& collective);
  void post_queued();
  void publish_completed() {
    const std::uint64_t completed = pending_.empty() ? posted_ : pending_.front()->sequence() - 1;
    std::atomic<std::uint64_t>& mine = memory_.state(memory_.rank()).completed;
    const std::uint64_t before = mine.load(std::memory_order_relaxed);
    if (before == completed) return;
    mine.store(completed, std::memory_order_seq_cst);
    // A rank may be waiting for a free slot.
    if (completed / (kRing / 2) != before / (kRing / 2)) waiting_.notify(false);
  }
  void end_started();

  const GroupMemory& memory_;
  const Waiting& waiting_;
  std::uint64_t posted_ = 0;  // the number of the latest post
  std::uint64_t admitted_until_ = kRing;
  std::vector<Collective*> pending_;                      // posted, not over
  std::deque<Queued> queue_;                              // not posted yet
  std::vector<std::shared_ptr<LocalOperation>> started_;  // collectives in pending_
  Scratch scratch_;
};

}  // namespace lockstep::comm
