// Writes what this process calls into its flight recorder (ring.h). All functions may be called from any thread; only
// dump_once() waits for a disk, and none of them reports an error: without memory nothing is recorded.
//
// The recorder is the file that LOCKSTEP_RECORDER names, where a launcher has made one; else memory of this process,
// which only dump_once() shows. Its memory stays until the process ends, so tickets may outlive their groups.
#pragma once

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "flight/ring.h"
#include "lockstep/base/status.h"

namespace lockstep::flight {

using Clock = std::chrono::steady_clock;

inline std::uint64_t nanoseconds(Clock::time_point when) {
  return static_cast<std::uint64_t>(when.time_since_epoch().count());
}

// An operation that was recorded, for what is known of it later. Does nothing if its entry has been used again.
class Ticket {
 public:
  Ticket() = default;
  Ticket(Entry* entry, std::uint64_t serial) : entry_(entry), serial_(serial) {}

  bool is_recorded() const { return entry_ != nullptr; }
  // The program has begun to wait for it. Only the first call counts. A call of another thread that takes the entry
  // just before the store gets this time; kEntries calls must have come since begin() for that.
  void waits() const {
    if (!is_mine() || entry_->waited.load(std::memory_order_relaxed) != 0) return;
    const std::uint64_t since = nanoseconds(Clock::now()) - entry_->called.load(std::memory_order_relaxed);
    if (!is_mine()) return;  // `called` is that of another call
    constexpr std::uint64_t kMost = 0xffffffff;
    entry_->waited.store(static_cast<std::uint32_t>(std::min(since / 1000 + 1, kMost)), std::memory_order_relaxed);
  }
  // The first call counts. The exchange fails if the entry has a later call by now, whatever this thread saw before.
  void end(Outcome outcome) const {
    if (!is_mine()) return;
    std::uint64_t mine = Entry::under_way(serial_);
    const std::uint64_t ended = (nanoseconds(Clock::now()) & ~std::uint64_t{3}) | static_cast<std::uint64_t>(outcome);
    entry_->ended.compare_exchange_strong(mine, ended, std::memory_order_release, std::memory_order_relaxed);
  }

 private:
  bool is_mine() const { return entry_ != nullptr && entry_->serial.load(std::memory_order_relaxed) == serial_; }

  Entry* entry_ = nullptr;
  std::uint64_t serial_ = 0;
};

// What is known of an operation when it begins.
struct Call {
  Op op = Op::kOther;
  std::uint8_t type = 0;     // c10::ScalarType
  bool waits = false;        // the program waits for it from the beginning
  std::int32_t peer = -1;    // group rank of the root or the other end
  std::uint64_t number = 0;  // of a message its tag
  std::uint64_t input = 0;   // elements
  std::uint64_t output = 0;
  std::uint16_t site = 0;  // a text that add_text() has added; 0: none
  std::uint16_t label = 0;
};

// This process's part in one group.
class GroupRecord {
 public:
  GroupRecord() = default;  // records nothing

  Ticket begin(const Call& call, Clock::time_point called) const {
    if (ring_ == nullptr) return {};
    const std::uint64_t serial = ring_->operations.fetch_add(1, std::memory_order_relaxed) + 1;
    Entry& entry = ring_->entries[serial % kEntries];
    constexpr auto kRelaxed = std::memory_order_relaxed;
    // Not recorded: a call whose entry another thread still writes, because it was stopped while others made kEntries
    // calls, and a call that comes so late that its entry has a later call.
    std::uint64_t before = entry.serial.load(kRelaxed);
    if (before > serial || !entry.serial.compare_exchange_strong(before, Entry::kWriting, kRelaxed)) return {};
    std::atomic_thread_fence(std::memory_order_release);
    entry.called.store(nanoseconds(called), kRelaxed);
    entry.ended.store(Entry::under_way(serial), kRelaxed);
    entry.number.store(call.number, kRelaxed);
    entry.input.store(call.input, kRelaxed);
    entry.output.store(call.output, kRelaxed);
    entry.group.store(static_cast<std::uint16_t>(group_), kRelaxed);
    entry.peer.store(call.peer, kRelaxed);
    entry.waited.store(call.waits ? 1 : 0, kRelaxed);
    entry.site.store(call.site, kRelaxed);
    entry.label.store(call.label, kRelaxed);
    entry.op.store(static_cast<std::uint8_t>(call.op), kRelaxed);
    entry.type.store(call.type, kRelaxed);
    entry.serial.store(serial, std::memory_order_release);
    return {&entry, serial};
  }
  // Texts that say where the program called, with the numbers 1, 2, ...: how many there are here, and the next one.
  // Threads may add the same one at the same time.
  std::uint32_t texts() const {
    return ring_ == nullptr ? UINT32_MAX : ring_->texts_known.load(std::memory_order_acquire);
  }
  void add_text(std::uint32_t number, std::string_view text) const;
  // This rank has left the group.
  void leave() const;

 private:
  friend GroupRecord add_group(std::string_view, std::string_view, int, int, std::span<const int>, std::uint64_t);
  GroupRecord(Ring* ring, std::uint32_t group) : ring_(ring), group_(group) {}

  Ring* ring_ = nullptr;
  std::uint32_t group_ = 0;
};

// `ranks`: of the world, by group rank; empty: the group is the world, or its ranks have the same numbers there.
// `identity`: a number that all ranks of the group have and no other group has; 0: there is none.
GroupRecord add_group(std::string_view name, std::string_view backend, int rank, int size, std::span<const int> ranks,
                      std::uint64_t identity = 0);

// A step of the training has ended: its gradients are the means over the ranks. Nothing is recorded before the process
// has a group.
void end_step();

// Notes the time from its construction to its destruction as time in which the program waits for a batch.
class InputTime {
 public:
  InputTime() : began_(Clock::now()) {}
  ~InputTime();
  InputTime(const InputTime&) = delete;
  InputTime& operator=(const InputTime&) = delete;

 private:
  Clock::time_point began_;
};

// Where a process with these variables (by name) writes its dumps: DIR/RUN_ID/attempt_N/rank_R.flight, with DIR in
// LOCKSTEP_DUMP_DIR. Empty: nowhere.
std::string dump_folder(std::string_view folder, std::string_view run_id, int attempt);
std::string dump_path(const std::string& folder, int rank);

// For a group that has just broken: writes this process's recorder to the folder that LOCKSTEP_DUMP_DIR names, at the
// first call. Without the variable it does nothing. What fails is logged. Blocks for up to 5 s.
void dump_once();

// The recorder of this process; for tests. Null: there is no memory for it.
const Ring* ring_of_process();

// Makes `path`, for LOCKSTEP_RECORDER: a file of this user, in memory. False: it cannot be made, or is not in memory.
bool make_file(const std::string& path);

// Copies the recorder in file `from` to file `to`, as a dump. `process` says what its process does, for people. An
// empty recorder is not copied. Blocks as write() does, and flushes nothing.
Status copy_to_dump(const std::string& from, const std::string& to, std::string_view process);

}  // namespace lockstep::flight
