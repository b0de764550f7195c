#include "mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "base/arithmetic.h"
#include "base/fault_point.h"
#include "reduce/copy.h"

namespace lockstep::comm {
namespace {

// Chunks of a pipelined send, and how many lie side by side before a place is used again.
constexpr std::size_t kSmallestMessageChunk = std::size_t{16} << 10;
constexpr std::size_t kLargestMessageChunk = std::size_t{128} << 10;
constexpr std::uint32_t kChunksAhead = 6;
// Shorter messages are not used to choose the way of copying.
constexpr std::size_t kJudgedMessageBytes = std::size_t{64} << 10;

// Flags in a peer's arena tell the peer that its memory is free again.
#ifdef __SANITIZE_THREAD__
// The peer learns of the store through a mapping of its own, which is other memory to TSan. It then uses this memory
// for something else, which another thread of this rank reads. TSan would take that for a race, so the store is hidden.
#ifdef __clang__  // instruments atomics even where no_sanitize says otherwise
#define LOCKSTEP_HIDDEN_FROM_TSAN __attribute__((disable_sanitizer_instrumentation, noinline))
#else
#define LOCKSTEP_HIDDEN_FROM_TSAN __attribute__((no_sanitize("thread"), noinline))
#endif
template <typename Integer>
LOCKSTEP_HIDDEN_FROM_TSAN void set_peer_flag(std::atomic<Integer>& flag, Integer value, std::memory_order /*order*/) {
  __atomic_store_n(reinterpret_cast<Integer*>(&flag), value, __ATOMIC_SEQ_CST);
}
#else
template <typename Integer>
void set_peer_flag(std::atomic<Integer>& flag, Integer value, std::memory_order order) {
  flag.store(value, order);
}
#endif

std::uint64_t chunks_of(std::size_t bytes, const PipelinedSend& pipelined) {
  return ceil_divide(bytes, pipelined.chunk_bytes);
}

}  // namespace

Mailbox::Mailbox(const GroupMemory& memory, const Waiting& waiting)
    : memory_(memory),
      waiting_(waiting),
      sent_(memory.size()),
      known_taken_(memory.size()),
      received_(memory.size()),
      waiting_sends_(memory.size()) {}

Mailbox::~Mailbox() {
  for (Outgoing& outgoing : outgoing_) {
    if (outgoing.consumed()->load(std::memory_order_acquire) != 0) continue;
    outgoing.staging.leak();
    outgoing.flag.leak();
  }
}

void Mailbox::start(Transfer& transfer) {
  if (transfer.is_send) {
    waiting_sends_[transfer.peer].push_back(&transfer);
    ++sends_;
  } else if (!take_unexpected(transfer, nullptr)) {
    receives_.emplace(transfer.tag, &transfer);
  }
  progress();
}

bool Mailbox::take_unexpected(Transfer& transfer, MessageLook* look) {
  const auto [first, last] = unexpected_.equal_range(transfer.tag);
  const auto found = std::find_if(first, last, [&](const auto& candidate) {
    const Arrival& arrival = candidate.second;
    const bool is_free = look == nullptr || (arrival.number < look->end &&
                                             std::count(look->passed.begin(), look->passed.end(), arrival.number) == 0);
    return is_free && takes_from(transfer, arrival.from);
  });
  if (found == last) return false;
  const Arrival& arrival = found->second;
  if (look != nullptr && arrival.pipelined != nullptr &&
      arrival.pipelined->written.load(std::memory_order_acquire) < chunks_of(arrival.bytes, *arrival.pipelined)) {
    look->passed.push_back(arrival.number);
    return false;
  }
  deliver(transfer, arrival);
  unexpected_.erase(found);
  return true;
}

bool Mailbox::try_receive(Transfer& transfer, MessageLook& look) {
  return !waiting_.aborted() && take_unexpected(transfer, &look);
}

void Mailbox::withdraw(Transfer& transfer) {
  if (transfer.is_send) {
    sends_ -= std::erase(waiting_sends_[transfer.peer], &transfer);
  } else {
    const auto [first, last] = receives_.equal_range(transfer.tag);
    const auto found = std::find_if(first, last, [&](const auto& one) { return one.second == &transfer; });
    if (found != last) receives_.erase(found);
  }
  fetching_.remove_if([&](const Fetching& fetching) { return fetching.transfer == &transfer; });
  for (Outgoing& outgoing : outgoing_) {
    if (outgoing.transfer == &transfer) outgoing.transfer = nullptr;
  }
}

void Mailbox::start(const std::shared_ptr<LocalOperation>& operation) {
  operation->transfer.operation = operation.get();
  operation->place = started_.insert(started_.end(), operation);
  start(operation->transfer);
}

void Mailbox::fail(LocalOperation& operation, Status status) {
  withdraw(operation.transfer);
  operation.finish(std::move(status));
  started_.erase(operation.place);
}

bool Mailbox::is_outgoing(const Transfer& transfer) const {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [&](const Outgoing& outgoing) { return outgoing.transfer == &transfer; });
}

bool Mailbox::has_arrivals() const {
  for (int source = 0; source < memory_.size(); ++source) {
    const std::uint64_t position = received_[source];
    const Message& message = memory_.message(source, memory_.rank(), position);
    if (message.filled.load(std::memory_order_acquire) == position + 1) return true;
  }
  return false;
}

void Mailbox::progress() {
  if (!waiting_.aborted()) move_messages();
  for (auto outgoing = outgoing_.begin(); outgoing != outgoing_.end();) {
    if (outgoing->consumed()->load(std::memory_order_acquire) == 0) {
      ++outgoing;
      continue;
    }
    if (outgoing->transfer != nullptr) end(*outgoing->transfer);
    outgoing = outgoing_.erase(outgoing);
  }
  if (!ended_.empty()) finish_ended();
}

void Mailbox::end(Transfer& transfer) {
  transfer.over = true;
  if (transfer.operation != nullptr) ended_.push_back(transfer.operation);
}

void Mailbox::finish_ended() {
  for (Operation::State* const ended : ended_) {
    auto& operation = static_cast<LocalOperation&>(*ended);
    operation.finish(operation.transfer.status);
    started_.erase(operation.place);
  }
  ended_.clear();
}

void Mailbox::move_messages() {
  for (int to = 0; sends_ > 0 && to < memory_.size(); ++to) {
    // In order: later messages to the same rank must not overtake earlier ones.
    for (std::deque<Transfer*>& sends = waiting_sends_[to]; !sends.empty() && try_send(*sends.front()); --sends_)
      sends.pop_front();
  }
  for (int source = 0; source < memory_.size(); ++source) fetch_from(source);
  fetching_.remove_if([&](Fetching& fetching) { return fetch_chunks(fetching); });
}

bool Mailbox::has_room(int to) {
  if (sent_[to] - known_taken_[to] < kChannelEntries) return true;
  known_taken_[to] = memory_.messages(memory_.rank(), to).taken.load(std::memory_order_acquire);
  return sent_[to] - known_taken_[to] < kChannelEntries;
}

bool Mailbox::try_send(Transfer& transfer) {
  const std::uint64_t position = sent_[transfer.peer];
  if (!has_room(transfer.peer)) return false;
  Message& message = memory_.message(memory_.rank(), transfer.peer, position);
  message.tag = transfer.tag;
  message.bytes = transfer.source.bytes;
  const bool large = transfer.source.bytes > kEagerBytes;
  if (!large) {
    if (transfer.source.bytes > 0) std::memcpy(message.inlined(), transfer.source.data, transfer.source.bytes);
    end(transfer);
  } else if (Status status = send_large(transfer, message); !status.ok()) {
    transfer.status = std::move(status);
    end(transfer);
    return true;  // nothing was sent: the entry stays free
  }
  ++sent_[transfer.peer];
  LOCKSTEP_FAULT_POINT("message: written");
  message.filled.store(position + 1, std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("message: sent");
  waiting_.notify(true);
  if (large && message.pipelined != kNowhere) write_chunks(transfer.source, message);
  return true;
}

Status Mailbox::send_large(Transfer& transfer, Message& message) {
  message.pipelined = kNowhere;
  Outgoing outgoing;
  outgoing.transfer = &transfer;
  const void* data = transfer.source.data;
  if (!memory_.arena().contains(data, transfer.source.bytes)) {
    LOCKSTEP_RETURN_IF_ERROR(open_pipelined_send(outgoing, message, transfer.source.bytes));
    data = outgoing.staging.data();
    outgoing.transfer = nullptr;
    end(transfer);  // the caller's buffer is free again once all chunks are written
  } else {
    LOCKSTEP_RETURN_IF_ERROR(outgoing.flag.allocate(memory_.shared_arena(), kLine));
  }
  outgoing.consumed()->store(0, std::memory_order_relaxed);
  message.data = memory_.address_in_arena(data);
  message.consumed = memory_.address_in_arena(outgoing.flag.data());
  outgoing_.push_back(std::move(outgoing));
  return {};
}

// One allocation holds the flag and, behind it, the PipelinedSend.
Status Mailbox::open_pipelined_send(Outgoing& outgoing, Message& message, std::size_t bytes) {
  const std::size_t chunk = std::clamp(bytes / 4, kSmallestMessageChunk, kLargestMessageChunk) / kLine * kLine;
  const std::size_t chunks = ceil_divide(bytes, chunk);
  // If the receiver keeps up, a few chunks are enough. The other pages are then never touched.
  LOCKSTEP_RETURN_IF_ERROR(outgoing.staging.allocate(memory_.shared_arena(), bytes, SharedArena::Pages::kWhenTouched));
  LOCKSTEP_RETURN_IF_ERROR(
      outgoing.flag.allocate(memory_.shared_arena(), kLine + sizeof(PipelinedSend) + chunks * sizeof(std::uint32_t)));
  auto* const pipelined = new (outgoing.flag.data() + kLine) PipelinedSend{chunk, {0}, {0}};
  message.pipelined = memory_.address_in_arena(pipelined);
  return {};
}

// Called once the receiver can see the message, so that it can read meanwhile. Does not wait for a receiver that stops.
void Mailbox::write_chunks(const ConstPiece& source, const Message& message) {
  auto& pipelined = *reinterpret_cast<PipelinedSend*>(memory_.resolve(memory_.rank(), message.pipelined));
  std::byte* const staging = memory_.resolve(memory_.rank(), message.data);
  const auto* const data = static_cast<const std::byte*>(source.data);
  const std::uint64_t chunks = chunks_of(source.bytes, pipelined);
  const bool plain = choice_.way() == CopyWay::kPlain;
  const auto started = std::chrono::steady_clock::now();
  std::uint64_t reused = 0;  // chunks whose places have been used again
  std::uint32_t places = 0;
  std::uint64_t stood_at = 0;  // how far the receiver was at the last wait in vain
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    std::uint64_t read = pipelined.read.load(std::memory_order_acquire);
    if (places >= kChunksAhead && read > stood_at) {
      for (int spin = 0; read <= reused && spin < waiting_.patience(); ++spin) {
        waiting_.relax();
        read = pipelined.read.load(std::memory_order_acquire);
      }
      if (read <= reused) stood_at = read;
    }
    const bool reuse = places >= kChunksAhead && read > reused;
    const std::uint32_t place = reuse ? pipelined.places()[reused++] : places++;
    pipelined.places()[chunk] = place;
    const std::size_t begin = chunk * pipelined.chunk_bytes;
    const std::size_t bytes = std::min<std::size_t>(pipelined.chunk_bytes, source.bytes - begin);
    std::byte* const to = staging + place * pipelined.chunk_bytes;
    plain ? copy_cached(to, data + begin, bytes) : copy_to_readers(to, data + begin, bytes);
    LOCKSTEP_FAULT_POINT("message: chunk written");
    pipelined.written.store(chunk + 1, std::memory_order_seq_cst);
    waiting_.notify(true);
  }
  if (source.bytes < kJudgedMessageBytes) return;
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - started;
  choice_.record(took.count() / static_cast<double>(source.bytes));
}

void Mailbox::fetch_from(int source) {
  for (;;) {
    const std::uint64_t position = received_[source];
    Message& message = memory_.message(source, memory_.rank(), position);
    if (message.filled.load(std::memory_order_acquire) != position + 1) return;
    LOCKSTEP_FAULT_POINT("message: arrived");
    if (Status reached = reach(source, message); !reached.ok()) {
      const Roster& ranks = memory_.roster();
      waiting_.abort(reached.code(), fmt::format("{} cannot take a message of {}: {}", ranks.name(memory_.rank()),
                                                 ranks.name(source), reached.message()));
      return;
    }
    Arrival arrival = open(source, message);
    const auto [first, last] = receives_.equal_range(arrival.tag);
    const auto receive =
        std::find_if(first, last, [&](const auto& candidate) { return takes_from(*candidate.second, arrival.from); });
    if (receive != last) {
      Transfer& transfer = *receive->second;
      receives_.erase(receive);
      deliver(transfer, arrival);
    } else {
      keep(std::move(arrival));
    }
    ++received_[source];
    LOCKSTEP_FAULT_POINT("message: read");
    memory_.messages(source, memory_.rank()).taken.store(position + 1, std::memory_order_seq_cst);
    waiting_.notify(true);
  }
}

// The entry is about to be used again.
void Mailbox::keep(Arrival arrival) {
  if (arrival.consumed == nullptr && arrival.bytes > 0) {
    arrival.kept.assign(reinterpret_cast<const char*>(arrival.data), arrival.bytes);
    arrival.data = nullptr;
  }
  arrival.number = arrivals_++;
  unexpected_.emplace(arrival.tag, std::move(arrival));
}

Status Mailbox::reach(int source, const Message& message) const {
  if (message.bytes <= kEagerBytes) return {};
  for (const Address address : {message.data, message.consumed, message.pipelined})
    LOCKSTEP_RETURN_IF_ERROR(memory_.reach(source, address));
  return {};
}

Mailbox::Arrival Mailbox::open(int source, Message& message) const {
  Arrival arrival{source, message.tag, message.bytes, message.inlined(), nullptr, nullptr};
  if (message.bytes <= kEagerBytes) return arrival;
  arrival.data = memory_.resolve(source, message.data);
  arrival.consumed = reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.resolve(source, message.consumed));
  if (message.pipelined != kNowhere)
    arrival.pipelined = reinterpret_cast<PipelinedSend*>(memory_.resolve(source, message.pipelined));
  return arrival;
}

void Mailbox::deliver(Transfer& receive, const Arrival& arrival) {
  receive.from = arrival.from;
  if (receive.target.bytes != arrival.bytes) {
    receive.status = {
        ErrorCode::kMismatch,
        fmt::format("recv from {} with tag {}: expected {} bytes, the message has {}",
                    memory_.roster().name(arrival.from), arrival.tag, receive.target.bytes, arrival.bytes)};
  } else if (arrival.pipelined != nullptr) {
    fetching_.push_back({&receive, arrival});
    if (fetch_chunks(fetching_.back())) fetching_.pop_back();
    return;
  } else if (arrival.bytes > 0) {
    const void* data = arrival.data != nullptr ? static_cast<const void*>(arrival.data) : arrival.kept.data();
    // Of short messages the C library fetches the lines from the other core faster: 2 KiB arrive in 0.89 us, not 0.97.
    if (arrival.consumed == nullptr) {
      std::memcpy(receive.target.data, data, arrival.bytes);
    } else {
      copy_cached(receive.target.data, data, arrival.bytes);
    }
  }
  end_receive(receive, arrival);
}

// True once all chunks have been fetched.
bool Mailbox::fetch_chunks(Fetching& fetching) {
  const Arrival& arrival = fetching.arrival;
  PipelinedSend& pipelined = *arrival.pipelined;
  auto* const target = static_cast<std::byte*>(fetching.transfer->target.data);
  const std::uint64_t chunks = chunks_of(arrival.bytes, pipelined);
  int spins = waiting_.patience();
  while (fetching.chunks < chunks) {
    if (pipelined.written.load(std::memory_order_acquire) <= fetching.chunks) {
      if (--spins < 0 || waiting_.aborted()) return false;
      waiting_.relax();
      continue;
    }
    const std::size_t begin = fetching.chunks * pipelined.chunk_bytes;
    const std::size_t bytes = std::min<std::size_t>(pipelined.chunk_bytes, arrival.bytes - begin);
    const std::byte* const from = arrival.data + pipelined.places()[fetching.chunks] * pipelined.chunk_bytes;
    arrival.bytes >= kLargeResults ? copy_past_caches(target + begin, from, bytes)
                                   : copy_cached(target + begin, from, bytes);
    LOCKSTEP_FAULT_POINT("message: chunk read");
    set_peer_flag(pipelined.read, ++fetching.chunks, std::memory_order_release);
    spins = waiting_.patience();
  }
  end_receive(*fetching.transfer, arrival);
  return true;
}

void Mailbox::end_receive(Transfer& receive, const Arrival& arrival) {
  if (arrival.consumed != nullptr) {
    // The sender breaks the group before it takes back its memory. What was read is valid only if that has not
    // happened.
    if (receive.status.ok()) receive.status = waiting_.broken_by_now();
    LOCKSTEP_FAULT_POINT("message: consumed");
    set_peer_flag(*arrival.consumed, std::uint32_t{1}, std::memory_order_seq_cst);
    waiting_.notify(true);
  }
  end(receive);
}

}  // namespace lockstep::comm
