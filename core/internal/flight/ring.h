// The flight recorder's memory: what one rank has called last, in a file that others of this user may read while it
// runs and after it has died. All of a recorder's state is in here. Times are of the steady clock, in nanoseconds.
//
// A dump is a copy of this memory. So this is also the format of a file, and of a stranger's bytes: record.h reads it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::flight {

inline constexpr std::uint64_t kMagic = 0x5448474c4650534c;  // "LSPFLGHT"
inline constexpr std::uint32_t kVersion = 3;
inline constexpr std::size_t kEntries = 1024;  // the ring keeps as many of the last operations
inline constexpr std::size_t kGroups = 64;
inline constexpr std::size_t kSteps = 128;  // the ring keeps as many of the training's last steps
inline constexpr std::size_t kTexts = 1024;
inline constexpr std::size_t kTextBytes = 64;

// The values of c10d::OpType, and three more.
enum class Op : std::uint8_t {
  kBroadcast = 0,
  kAllReduce = 1,
  kAllReduceCoalesced = 2,
  kReduce = 3,
  kAllGather = 4,
  kAllGatherIntoTensor = 5,
  kAllGatherCoalesced = 6,
  kGather = 7,
  kScatter = 8,
  kReduceScatter = 9,
  kAllToAllSingle = 10,
  kAllToAll = 11,
  kSend = 12,
  kReceive = 13,
  kReceiveFromAny = 14,
  kBarrier = 15,
  kReduceScatterTensor = 16,
  kAllGatherIntoTensorCoalesced = 40,
  kReduceScatterTensorCoalesced = 41,
  kMonitoredBarrier = 42,
  kOther = 100,  // a call that its own rank has refused
};

inline constexpr bool is_message(Op op) {
  return op == Op::kSend || op == Op::kReceive || op == Op::kReceiveFromAny;
}

// How an operation ended; the two lowest bits of its time.
enum class Outcome : std::uint64_t {
  kUnderWay = 0,
  kDone = 1,
  kFailed = 2,
  kHandedOver = 3,  // to a backend that does not say when it is done
};

// One operation, in one line of the cache. The thread that writes it has set `serial` to kWriting before, and sets it
// to the operation's number last.
struct alignas(64) Entry {
  static constexpr std::uint64_t kWriting = UINT64_MAX;
  // `ended` of a call that is under way. No other call has the same word.
  static constexpr std::uint64_t under_way(std::uint64_t serial) { return serial << 2; }

  std::atomic<std::uint64_t> serial;  // from 1; 0: never used
  std::atomic<std::uint64_t> called;
  std::atomic<std::uint64_t> ended;   // with its Outcome; with kUnderWay it is under_way()
  std::atomic<std::uint64_t> number;  // among the group's collectives, from 1; of a message its tag
  std::atomic<std::uint64_t> input;   // elements of this rank
  std::atomic<std::uint64_t> output;
  std::atomic<std::int32_t> peer;     // the root or the other end, a group rank; -1: none
  std::atomic<std::uint32_t> waited;  // when the program began to wait, microseconds after the call; 0: it does not
  std::atomic<std::uint16_t> group;   // Group::id, its lower half
  std::atomic<std::uint16_t> site;    // the text that says where the program called, from 1; 0: not known
  std::atomic<std::uint16_t> label;   // the text that says for what
  std::atomic<std::uint8_t> op;
  std::atomic<std::uint8_t> type;  // c10::ScalarType
};
static_assert(sizeof(Entry) == 64 && std::atomic<std::uint64_t>::is_always_lock_free);

// A group is where it was put first, until another one takes its place.
struct alignas(64) Group {
  static constexpr std::size_t kRanks = 88;

  std::uint32_t id = 0;  // from 1; 0: none
  std::uint32_t left = 0;
  std::int32_t rank = 0;  // of this process
  std::int32_t size = 0;
  // Of the world, by group rank: first, first + stride, ... Stride 0: in `ranks`, as far as they fit.
  std::int32_t first = 0;
  std::int32_t stride = 0;
  std::uint64_t identity = 0;  // of the group, the same on all its ranks; 0: not known
  std::array<char, 96> name{};
  std::array<char, 16> backend{};
  std::array<std::int32_t, kRanks> ranks{};
};
static_assert(sizeof(Group) == 512);

// The end of a step of the training. Both are 0 while the rank writes.
struct Step {
  std::atomic<std::uint64_t> ended;
  std::atomic<std::uint64_t> input;  // Ring::input at that time
};

struct alignas(4096) Ring {
  // 0 until the rest is there.
  std::atomic<std::uint64_t> magic;
  std::uint32_t version;
  std::atomic<std::int32_t> owner;  // the process that writes
  std::atomic<std::int32_t> rank;   // of the world, as it is now
  std::int32_t attempt;             // LOCKSTEP_RESTART_COUNT
  std::uint64_t steady;             // two clocks at one moment
  std::uint64_t real;
  std::array<char, 64> host;
  std::array<char, 64> job;
  // Of a dump; 0 and empty in a live one.
  std::uint64_t dumped;
  std::array<char, 64> process;  // what its process did then, for people
  std::atomic<std::uint32_t> groups_made;
  alignas(64) std::atomic<std::uint64_t> operations;  // begun so far
  alignas(64) std::atomic<std::uint64_t> input;       // nanoseconds for which the program waited for batches
  std::atomic<std::uint64_t> steps_done;
  std::array<Step, kSteps> steps;                      // step n, from 0, is at n % kSteps
  alignas(64) std::atomic<std::uint32_t> texts_known;  // text n is at n - 1
  alignas(64) std::array<std::array<char, kTextBytes>, kTexts> texts;
  std::array<Group, kGroups> groups;
  std::array<Entry, kEntries> entries;
};

}  // namespace lockstep::flight
