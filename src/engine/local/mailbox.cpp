#include "mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "base/fault_point.h"
#include "reduce/copy.h"

namespace lockstep::comm {
namespace {

// Pieces of a passage, and how many lie side by side before places are used again.
constexpr std::size_t kSmallestPiece = std::size_t{16} << 10;
constexpr std::size_t kLargestPiece = std::size_t{128} << 10;
constexpr std::uint32_t kPiecesAhead = 6;
// Shorter messages do not tell how best to copy.
constexpr std::size_t kJudgedBytes = std::size_t{64} << 10;

std::uint64_t pieces_of(std::size_t bytes, const Passage& passage) {
  return (bytes + passage.piece_bytes - 1) / passage.piece_bytes;
}

}  // namespace

Mailbox::Mailbox(const GroupMemory& memory, const Waiting& waiting)
    : memory_(memory), waiting_(waiting), sent_(memory.world()), received_(memory.world()) {}

Mailbox::~Mailbox() {
  for (Outgoing& outgoing : in_flight_) {
    if (outgoing.consumed()->load(std::memory_order_acquire) != 0) continue;
    outgoing.staging.leak();
    outgoing.flag.leak();
  }
}

void Mailbox::start(Transfer& transfer) {
  if (transfer.is_send) {
    sends_.push_back(&transfer);
  } else if (!take_unexpected(transfer, Which::kAny)) {
    receives_.push_back(&transfer);
  }
  pump();
}

bool Mailbox::take_unexpected(Transfer& transfer, Which which) {
  const auto letter = std::find_if(unexpected_.begin(), unexpected_.end(),
                                   [&](const Letter& candidate) { return matches(transfer, candidate); });
  if (letter == unexpected_.end()) return false;
  if (which == Which::kWritten && letter->passage != nullptr &&
      letter->passage->written.load(std::memory_order_acquire) < pieces_of(letter->bytes, *letter->passage)) {
    return false;
  }
  deliver(transfer, *letter);
  unexpected_.erase(letter);
  return true;
}

bool Mailbox::try_receive(Transfer& transfer) {
  pump();
  return !waiting_.aborted() && take_unexpected(transfer, Which::kWritten);
}

void Mailbox::withdraw(Transfer& transfer) {
  sends_.remove(&transfer);
  receives_.remove(&transfer);
  fetching_.remove_if([&](const Fetching& fetching) { return fetching.transfer == &transfer; });
  for (Outgoing& outgoing : in_flight_) {
    if (outgoing.transfer == &transfer) outgoing.transfer = nullptr;
  }
}

bool Mailbox::in_flight(const Transfer& transfer) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](const Outgoing& outgoing) { return outgoing.transfer == &transfer; });
}

bool Mailbox::has_mail() const {
  for (int source = 0; source < memory_.world(); ++source) {
    const std::uint64_t position = received_[source];
    const Message& message = memory_.message(source, memory_.rank(), position);
    if (message.filled.load(std::memory_order_acquire) == position + 1) return true;
  }
  return false;
}

void Mailbox::pump() {
  if (!waiting_.aborted()) pass_on();
  for (auto outgoing = in_flight_.begin(); outgoing != in_flight_.end();) {
    if (outgoing->consumed()->load(std::memory_order_acquire) == 0) {
      ++outgoing;
      continue;
    }
    if (outgoing->transfer != nullptr) outgoing->transfer->over = true;
    outgoing = in_flight_.erase(outgoing);
  }
}

void Mailbox::pass_on() {
  std::vector<bool> blocked(memory_.world());
  for (auto send = sends_.begin(); send != sends_.end();) {
    const int to = (*send)->peer;
    if (!blocked[to] && try_send(**send)) {
      send = sends_.erase(send);
    } else {
      blocked[to] = true;  // later messages to the same rank stay behind
      ++send;
    }
  }
  for (int source = 0; source < memory_.world(); ++source) fetch_from(source);
  fetching_.remove_if([&](Fetching& fetching) { return fetch_pieces(fetching); });
}

bool Mailbox::try_send(Transfer& transfer) {
  const std::uint64_t position = sent_[transfer.peer];
  Message& message = memory_.message(memory_.rank(), transfer.peer, position);
  const bool free =
      position < kChannelEntries || message.taken.load(std::memory_order_acquire) == position - kChannelEntries + 1;
  if (!free) return false;
  message.tag = transfer.tag;
  message.bytes = transfer.source.bytes;
  message.data = message.consumed = message.passage = kNowhere;
  if (transfer.source.bytes <= kEagerBytes) {
    if (transfer.source.bytes > 0) std::memcpy(message.eager, transfer.source.data, transfer.source.bytes);
    transfer.over = true;
  } else if (Status status = send_large(transfer, message); !status.ok()) {
    transfer.status = std::move(status);
    transfer.over = true;
    return true;  // nothing was sent: the entry stays free
  }
  ++sent_[transfer.peer];
  LOCKSTEP_FAULT_POINT("message: written");
  message.filled.store(position + 1, std::memory_order_seq_cst);
  LOCKSTEP_FAULT_POINT("message: sent");
  waiting_.notify(true);
  if (message.passage != kNowhere) write_passage(transfer.source, message);
  return true;
}

Status Mailbox::send_large(Transfer& transfer, Message& message) {
  Outgoing outgoing;
  outgoing.transfer = &transfer;
  const void* data = transfer.source.data;
  if (!memory_.arena().contains(data, transfer.source.bytes)) {
    LOCKSTEP_RETURN_IF_ERROR(open_passage(outgoing, message, transfer.source.bytes));
    data = outgoing.staging.data();
    outgoing.transfer = nullptr;
    transfer.over = true;  // the caller's buffer is free again as soon as all is written
  } else {
    LOCKSTEP_RETURN_IF_ERROR(outgoing.flag.allocate(memory_.shared_arena(), kLine));
  }
  outgoing.consumed()->store(0, std::memory_order_relaxed);
  message.data = memory_.address_in_arena(data);
  message.consumed = memory_.address_in_arena(outgoing.flag.data());
  in_flight_.push_back(std::move(outgoing));
  return {};
}

// The flag lies before the passage.
Status Mailbox::open_passage(Outgoing& outgoing, Message& message, std::size_t bytes) {
  const std::size_t piece = std::clamp(bytes / 4, kSmallestPiece, kLargestPiece) / kLine * kLine;
  const std::size_t pieces = (bytes + piece - 1) / piece;
  // A receiver that follows lets a few pieces do, so the other pages are not wanted.
  LOCKSTEP_RETURN_IF_ERROR(outgoing.staging.allocate(memory_.shared_arena(), bytes, SharedArena::Pages::kWhenTouched));
  LOCKSTEP_RETURN_IF_ERROR(
      outgoing.flag.allocate(memory_.shared_arena(), kLine + sizeof(Passage) + pieces * sizeof(std::uint32_t)));
  auto* const passage = new (outgoing.flag.data() + kLine) Passage{piece, {0}, {0}};
  message.passage = memory_.address_in_arena(passage);
  return {};
}

// After the message has been announced, so that the receiver can follow. Never waits for one that stands still.
void Mailbox::write_passage(const ConstPiece& source, const Message& message) {
  auto& passage = *reinterpret_cast<Passage*>(memory_.resolve(memory_.rank(), message.passage));
  std::byte* const staging = memory_.resolve(memory_.rank(), message.data);
  const auto* const data = static_cast<const std::byte*>(source.data);
  const std::uint64_t pieces = pieces_of(source.bytes, passage);
  const bool plain = choice_.way() == CopyWay::kPlain;
  const auto started = std::chrono::steady_clock::now();
  std::uint64_t reused = 0;  // pieces that others have been written over
  std::uint32_t places = 0;
  std::uint64_t stood_at = 0;  // where the receiver was when it was last waited for in vain
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    std::uint64_t read = passage.read.load(std::memory_order_acquire);
    if (places >= kPiecesAhead && read > stood_at) {
      for (int spin = 0; read <= reused && spin < waiting_.patience(); ++spin) {
        waiting_.relax();
        read = passage.read.load(std::memory_order_acquire);
      }
      if (read <= reused) stood_at = read;
    }
    const bool reuse = places >= kPiecesAhead && read > reused;
    const std::uint32_t place = reuse ? passage.places()[reused++] : places++;
    passage.places()[piece] = place;
    const std::size_t begin = piece * passage.piece_bytes;
    const std::size_t bytes = std::min<std::size_t>(passage.piece_bytes, source.bytes - begin);
    std::byte* const to = staging + place * passage.piece_bytes;
    plain ? copy_cached(to, data + begin, bytes) : copy_to_readers(to, data + begin, bytes);
    LOCKSTEP_FAULT_POINT("message: piece written");
    passage.written.store(piece + 1, std::memory_order_seq_cst);
    waiting_.notify(true);
  }
  if (source.bytes < kJudgedBytes) return;
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
    Letter letter = open(source, message);
    const auto receive = std::find_if(receives_.begin(), receives_.end(),
                                      [&](const Transfer* candidate) { return matches(*candidate, letter); });
    if (receive != receives_.end()) {
      deliver(**receive, letter);
      receives_.erase(receive);
    } else {
      unexpected_.push_back(std::move(letter));
    }
    ++received_[source];
    LOCKSTEP_FAULT_POINT("message: read");
    message.taken.store(position + 1, std::memory_order_seq_cst);
    waiting_.notify(true);
  }
}

Status Mailbox::reach(int source, const Message& message) const {
  for (const Address address : {message.data, message.consumed, message.passage})
    LOCKSTEP_RETURN_IF_ERROR(memory_.reach(source, address));
  return {};
}

Mailbox::Letter Mailbox::open(int source, const Message& message) const {
  Letter letter{source, message.tag, message.bytes, {}, nullptr, nullptr, nullptr};
  if (message.data == kNowhere) {
    letter.eager.assign(reinterpret_cast<const char*>(message.eager),
                        std::min<std::size_t>(message.bytes, kEagerBytes));
  } else {
    letter.data = memory_.resolve(source, message.data);
    letter.consumed = reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.resolve(source, message.consumed));
    if (message.passage != kNowhere)
      letter.passage = reinterpret_cast<Passage*>(memory_.resolve(source, message.passage));
  }
  return letter;
}

void Mailbox::deliver(Transfer& receive, const Letter& letter) {
  receive.from = letter.from;
  if (receive.target.bytes != letter.bytes) {
    receive.status = {ErrorCode::kMismatch,
                      fmt::format("recv from {} with tag {}: expected {} bytes, the message has {}",
                                  memory_.roster().name(letter.from), letter.tag, receive.target.bytes, letter.bytes)};
  } else if (letter.passage != nullptr) {
    fetching_.push_back({&receive, letter});
    if (fetch_pieces(fetching_.back())) fetching_.pop_back();
    return;
  } else if (letter.bytes > 0) {
    const void* data = letter.data != nullptr ? static_cast<const void*>(letter.data) : letter.eager.data();
    copy_cached(receive.target.data, data, letter.bytes);
  }
  end_receive(receive, letter);
}

// True once there are no more.
bool Mailbox::fetch_pieces(Fetching& fetching) {
  const Letter& letter = fetching.letter;
  Passage& passage = *letter.passage;
  auto* const target = static_cast<std::byte*>(fetching.transfer->target.data);
  const std::uint64_t pieces = pieces_of(letter.bytes, passage);
  int spins = waiting_.patience();
  while (fetching.pieces < pieces) {
    if (passage.written.load(std::memory_order_acquire) <= fetching.pieces) {
      if (--spins < 0 || waiting_.aborted()) return false;
      waiting_.relax();
      continue;
    }
    const std::size_t begin = fetching.pieces * passage.piece_bytes;
    const std::size_t bytes = std::min<std::size_t>(passage.piece_bytes, letter.bytes - begin);
    const std::byte* const from = letter.data + passage.places()[fetching.pieces] * passage.piece_bytes;
    letter.bytes >= kLargeResults ? copy_past_caches(target + begin, from, bytes)
                                  : copy_cached(target + begin, from, bytes);
    LOCKSTEP_FAULT_POINT("message: piece read");
    passage.read.store(++fetching.pieces, std::memory_order_release);
    spins = waiting_.patience();
  }
  end_receive(*fetching.transfer, letter);
  return true;
}

void Mailbox::end_receive(Transfer& receive, const Letter& letter) {
  // The sender may have taken its memory back meanwhile; it breaks the group before it does.
  if (letter.data != nullptr && receive.status.ok()) receive.status = waiting_.broken_by_now();
  if (letter.consumed != nullptr) {
    LOCKSTEP_FAULT_POINT("message: consumed");
    letter.consumed->store(1, std::memory_order_seq_cst);
    waiting_.notify(true);
  }
  receive.over = true;
}

}  // namespace lockstep::comm
