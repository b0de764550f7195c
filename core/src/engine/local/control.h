// Control memory: what the ranks of a group tell one another, apart from the data itself.
//
// One zero-filled segment that all ranks map. Each cache line of it has one writer, except those of claim words, the
// header, bells and entries of messages. A collective with sequence number s uses slot s % kRing of every rank. A slot
// is used again only once every rank has finished with it (RankState::completed). docs/collectives.md describes how an
// operation proceeds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/arithmetic.h"
#include "base/call_place.h"
#include "engine/core/request.h"
#include "lockstep/engine/communicator.h"
#include "lockstep/reduce/types.h"

namespace lockstep::comm {

inline constexpr int kRing = Communicator::kMaxPending;
inline constexpr std::size_t kLine = 64;

// A place in shared memory that means the same to every rank. 0: no place that others can use. Else an offset, plus
// one, into the arena of the rank that published it; with the top bit, an offset into the control memory.
using Address = std::uint64_t;
inline constexpr Address kNowhere = 0;
inline constexpr Address kInControl = Address{1} << 63;

enum PostFlag : std::uint8_t {
  kBlocking = 1,  // the rank stays in the call until the operation is over
  // Its buffer is private and has not been copied to where tickets could use it. The rank can stream, or will stage it
  // and then say that it is ready.
  kUnstaged = 2,
  kPrivateOutput = 4,  // only the rank itself can write its output
  // Its inputs are in control memory, each of `count` units. If all ranks say so, each makes its own result.
  kInlined = 8,
  kTiny = 16,  // the inputs are in the post itself, see tiny()
};

// The request of one rank. The fields up to `factor` must agree between ranks, except `flags`, and except `count` for
// operations with lists. These have a `count` only with kInlined (bytes of a piece); their tables of pieces must agree.
struct alignas(kLine) Post {
  std::atomic<std::uint64_t> state;  // 2 * sequence once written; + 1 once others may use its buffers
  Kind kind;
  DataType type;
  ReduceOp op;
  std::uint8_t flags;
  std::uint16_t root;
  std::uint16_t list;
  std::uint64_t count;
  double factor;
  Address input;
  Address output;
  std::uint64_t input_bytes;
  std::uint64_t output_bytes;

  // A tiny input replaces both sizes, which then follow from `count`. So one cache line holds everything.
  static constexpr std::size_t kTinyBytes = 16;
  std::byte* tiny() { return reinterpret_cast<std::byte*>(&input_bytes); }
};
static_assert(sizeof(Post) == kLine);

// Counts tickets of the operation in the slot: those of this rank's slice that have been claimed, or those of any slice
// that this rank has done. The word is sequence << kTicketBits | count, so that it needs no reset.
inline constexpr int kTicketBits = 24;
struct alignas(kLine) Counter {
  std::atomic<std::uint64_t> word;
  // Used in the counter of done tickets only. The rank may hold tickets of the operation with this number; 0: it holds
  // none. A rank that dies leaves the number, so the others know whether the dead rank held a ticket.
  std::atomic<std::uint64_t> inside;
};
inline constexpr std::uint64_t kTicketMask = (std::uint64_t{1} << kTicketBits) - 1;
// In a claim word: no rank may claim any more. No operation has that many tickets.
inline constexpr std::uint64_t kClosed = std::uint64_t{1} << (kTicketBits - 1);

// The count in a Counter, or 0 if the counter still holds an earlier operation.
inline std::uint64_t count_of(const Counter& counter, std::uint64_t sequence) {
  const std::uint64_t word = counter.word.load(std::memory_order_acquire);
  return (word >> kTicketBits) == sequence ? (word & kTicketMask) : 0;
}

// Entry i of a rank's table: what it sends to rank i and expects from rank i.
struct PieceEntry {
  Address input;
  std::uint64_t input_bytes;
  Address output;
  std::uint64_t output_bytes;
};

// Which rank a sleeping rank waits for.
inline constexpr std::uint32_t kNotWaiting = 0;
inline constexpr std::uint32_t kWaitingForAny = 1;  // plus rank + 1: only for that rank's next post

struct alignas(kLine) RankState {
  // Written by the rank itself.
  std::atomic<std::uint64_t> completed;  // this rank is finished with every collective up to this number
  std::atomic<std::uint64_t> current;    // the last collective that it called, see call_word()
  std::atomic<std::uint32_t> left;       // whether it has left the group
  // Whoever wakes this rank reads `waiting`, which this rank writes, and rings `bell`.
  alignas(kLine) std::atomic<std::uint32_t> bell;
  std::atomic<std::uint32_t> waiting;
  // Of streams: how many chunks it has laid out, and how many of its slices are reduced.
  alignas(kLine) std::atomic<std::uint64_t> laid_out;
  std::atomic<std::uint64_t> reduced;
  std::atomic<std::uint32_t> copy_way;  // valid on rank 0: how all ranks write their staging, a CopyWay
  // The same for other operations, one bit for each Kind (copy_ways.h): streamed, and small.
  std::atomic<std::uint32_t> move_ways;
  std::atomic<std::uint32_t> small_ways;
};

struct alignas(kLine) Header {
  std::atomic<std::uint32_t> sleepers;
  alignas(kLine) std::atomic<std::uint32_t> aborted_by;  // 1 + the rank that broke the group first; 0: none
  std::atomic<std::uint64_t> identity;                   // Group::identity(), from the first rank that comes
};

// Why a rank broke the group. Each rank writes its own record before it sets Header::aborted_by, so a rank that dies in
// between harms no other.
struct alignas(kLine) AbortReason {
  std::uint32_t code;
  char message[1020];
};

// The failure that a rank has seen in another group (failure.h). The rank itself writes it, once.
struct alignas(kLine) KnownCause {
  std::atomic<std::uint32_t> is_set;
  char cause[508];
};

// What a rank waits for that the other ranks of the group do not see: in another group, or a message. The rank itself
// writes it, others read it at any time.
class alignas(kLine) WaitNote {
 public:
  void write(const std::string& text);
  // Empty: nothing, or it is being written.
  std::string read() const;

 private:
  static constexpr std::size_t kWords = 31;
  std::atomic<std::uint64_t> version_;  // odd while it is being written
  std::atomic<std::uint64_t> words_[kWords];
};

// Each rank's staging (StagingRing) holds this many chunks of up to stream_chunk_bytes(), a multiple of a page.
inline constexpr std::size_t kStreamChunks = 3;
std::size_t stream_chunk_bytes(int group_size);

// The most that is inline. Private inputs of a rank that together have up to kMostInlineBytes are copied into control
// memory; shared ones up to kMostInlineSharedBytes too, because a copy costs less than waiting until others have read
// them in place. An all-reduce inlines up to Communicator::kInlineBytes only, where every rank reduces everything; but
// private buffers of a group of kMostInlineRanks too: a second meeting would take longer.
inline constexpr std::size_t kMostInlineBytes = std::size_t{32} << 10;
inline constexpr std::size_t kMostInlineSharedBytes = std::size_t{8} << 10;
inline constexpr int kMostInlineRanks = 2;

// Point-to-point: each ordered pair of ranks has a ring of entries. The sender fills an entry, the receiver empties it.
inline constexpr int kChannelEntries = 8;
inline constexpr std::size_t kEagerBytes = 2048;
struct alignas(kLine) Message {
  std::atomic<std::uint64_t> filled;  // position + 1 once written
  std::int64_t tag;
  std::uint64_t bytes;
  Address data;       // of a large message
  Address consumed;   // of a large message: the flag to set once the data has been copied
  Address pipelined;  // of a message that comes in chunks: its PipelinedSend
  alignas(kLine) std::byte eager[kEagerBytes];

  // The place of a message of up to kEagerBytes. A tiny message replaces the addresses, so that one cache line holds
  // everything.
  static constexpr std::size_t kTinyBytes = 40;
  std::byte* inlined() { return bytes <= kTinyBytes ? reinterpret_cast<std::byte*>(this) + kLine - kTinyBytes : eager; }
};
static_assert(offsetof(Message, data) == kLine - Message::kTinyBytes);

// The messages of an ordered pair of ranks. The receiver alone writes `taken`, and the sender reads it only when it
// knows of no free entry. So a message takes one line from core to core.
struct MessageRing {
  alignas(kLine) std::atomic<std::uint64_t> taken;  // how many messages the receiver is done with
  Message entries[kChannelEntries];
};

// A large message from private memory, in the sender's arena. Chunks are written while the receiver reads earlier ones.
// A new chunk overwrites one that has been read, so that all of them stay in cache. While the receiver does not read,
// they are written side by side.
struct PipelinedSend {
  std::uint64_t chunk_bytes;
  alignas(kLine) std::atomic<std::uint64_t> written;  // chunks
  alignas(kLine) std::atomic<std::uint64_t> read;
  // By chunk: its place in the staging, counted in chunks.
  std::uint32_t* places() { return reinterpret_cast<std::uint32_t*>(this + 1); }
};

// CallPlace::word().
using CallWord = std::atomic<std::uint64_t>;

// The offsets of everything in the control memory of a group of `group_size` ranks.
class ControlLayout {
 public:
  explicit ControlLayout(int group_size)
      : group_size_(group_size),
        pieces_(align(kRing * (sizeof(Post) + 2 * sizeof(Counter) + Communicator::kInlineBytes + sizeof(CallWord)))),
        rank_bytes_(align(pieces_ + std::size_t{kRing} * group_size * sizeof(PieceEntry))),
        states_(align(sizeof(Header))),
        reasons_(align(states_ + group_size * sizeof(RankState))),
        known_causes_(reasons_ + group_size * sizeof(AbortReason)),
        wait_notes_(known_causes_ + group_size * sizeof(KnownCause)),
        ranks_(align(wait_notes_ + group_size * sizeof(WaitNote))),
        channels_(ranks_ + group_size * rank_bytes_),
        stream_(align(channels_ + std::size_t(group_size) * group_size * sizeof(MessageRing))),
        stream_bytes_(kStreamChunks * stream_chunk_bytes(group_size)),
        large_payloads_(stream_ + group_size * stream_bytes_),
        texts_(large_payloads_ + group_size * large_payload_bytes()) {}

  // This is address space only; pages exist once they are touched.
  std::size_t total() const { return texts_ + group_size_ * kMostTexts * sizeof(PlaceText); }
  std::size_t state(int rank) const { return states_ + rank * sizeof(RankState); }
  std::size_t reason(int rank) const { return reasons_ + rank * sizeof(AbortReason); }
  std::size_t known_cause(int rank) const { return known_causes_ + rank * sizeof(KnownCause); }
  std::size_t wait_note(int rank) const { return wait_notes_ + rank * sizeof(WaitNote); }
  std::size_t stream(int rank) const { return stream_ + rank * stream_bytes_; }
  std::size_t post(int rank, int slot) const { return ranks_ + rank * rank_bytes_ + slot * sizeof(Post); }
  std::size_t claim(int rank, int slot) const { return post(rank, kRing) + slot * sizeof(Counter); }
  std::size_t done(int rank, int slot) const { return claim(rank, kRing) + slot * sizeof(Counter); }
  std::size_t payload(int rank, int slot) const { return done(rank, kRing) + slot * Communicator::kInlineBytes; }
  // Payloads of more than Communicator::kInlineBytes, and the size of all of a rank's places for them.
  std::size_t large_payload(int rank, int slot) const {
    return large_payloads_ + rank * large_payload_bytes() + slot * kMostInlineBytes;
  }
  static constexpr std::size_t large_payload_bytes() { return kRing * kMostInlineBytes; }
  std::size_t pieces(int rank, int slot) const {
    return ranks_ + rank * rank_bytes_ + pieces_ + std::size_t(slot) * group_size_ * sizeof(PieceEntry);
  }
  // From where a rank has called the collective in the slot, and the texts that this refers to, by their numbers.
  std::size_t call_place(int rank, int slot) const { return payload(rank, kRing) + slot * sizeof(CallWord); }
  std::size_t text(int rank, TextNumber number) const {
    return texts_ + (rank * kMostTexts + number - 1) * sizeof(PlaceText);
  }
  std::size_t messages(int from, int to) const {
    return channels_ + (std::size_t(from) * group_size_ + to) * sizeof(MessageRing);
  }

 private:
  static std::size_t align(std::size_t value) { return round_up(value, 4096); }

  int group_size_;
  std::size_t pieces_;
  std::size_t rank_bytes_;
  std::size_t states_;
  std::size_t reasons_;
  std::size_t known_causes_;
  std::size_t wait_notes_;
  std::size_t ranks_;
  std::size_t channels_;
  std::size_t stream_;
  std::size_t stream_bytes_;
  std::size_t large_payloads_;
  std::size_t texts_;
};

}  // namespace lockstep::comm
