#include "mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "copy.h"

namespace lockstep::comm {

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
  } else if (!take_unexpected(transfer)) {
    receives_.push_back(&transfer);
  }
  pump();
}

bool Mailbox::take_unexpected(Transfer& transfer) {
  const auto letter = std::find_if(unexpected_.begin(), unexpected_.end(),
                                   [&](const Letter& candidate) { return matches(transfer, candidate); });
  if (letter == unexpected_.end()) return false;
  deliver(transfer, *letter);
  unexpected_.erase(letter);
  return true;
}

bool Mailbox::try_receive(Transfer& transfer) {
  pump();
  return take_unexpected(transfer);
}

void Mailbox::withdraw(Transfer& transfer) {
  sends_.remove(&transfer);
  receives_.remove(&transfer);
  for (Outgoing& outgoing : in_flight_) {
    if (outgoing.transfer == &transfer) outgoing.transfer = nullptr;
  }
}

bool Mailbox::in_flight(const Transfer& transfer) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](const Outgoing& outgoing) { return outgoing.transfer == &transfer; });
}

void Mailbox::pump() {
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
  for (auto outgoing = in_flight_.begin(); outgoing != in_flight_.end();) {
    if (outgoing->consumed()->load(std::memory_order_acquire) == 0) {
      ++outgoing;
      continue;
    }
    if (outgoing->transfer != nullptr) outgoing->transfer->over = true;
    outgoing = in_flight_.erase(outgoing);
  }
}

bool Mailbox::try_send(Transfer& transfer) {
  const std::uint64_t position = sent_[transfer.peer];
  Message& message = memory_.message(memory_.rank(), transfer.peer, position);
  const bool free =
      position < kChannelEntries || message.taken.load(std::memory_order_acquire) == position - kChannelEntries + 1;
  if (!free) return false;
  message.tag = transfer.tag;
  message.bytes = transfer.source.bytes;
  message.data = message.consumed = kNowhere;
  if (transfer.source.bytes <= kEagerBytes) {
    if (transfer.source.bytes > 0) std::memcpy(message.eager, transfer.source.data, transfer.source.bytes);
    transfer.over = true;
  } else if (Status status = send_large(transfer, message); !status.ok()) {
    transfer.status = std::move(status);
    transfer.over = true;
    return true;  // nothing was sent: the entry stays free
  }
  ++sent_[transfer.peer];
  message.filled.store(position + 1, std::memory_order_seq_cst);
  waiting_.notify(true);
  return true;
}

Status Mailbox::send_large(Transfer& transfer, Message& message) {
  Outgoing outgoing;
  outgoing.transfer = &transfer;
  LOCKSTEP_RETURN_IF_ERROR(outgoing.flag.allocate(memory_.shared_arena(), kLine));
  outgoing.consumed()->store(0, std::memory_order_relaxed);
  const void* data = transfer.source.data;
  if (!memory_.arena().contains(data, transfer.source.bytes)) {
    LOCKSTEP_RETURN_IF_ERROR(outgoing.staging.allocate(memory_.shared_arena(), transfer.source.bytes));
    copy_cached(outgoing.staging.data(), data, transfer.source.bytes);
    data = outgoing.staging.data();
    outgoing.transfer = nullptr;
    transfer.over = true;  // the caller's buffer is free again
  }
  message.data = memory_.address_in_arena(data);
  message.consumed = memory_.address_in_arena(outgoing.flag.data());
  in_flight_.push_back(std::move(outgoing));
  return {};
}

void Mailbox::fetch_from(int source) {
  for (;;) {
    const std::uint64_t position = received_[source];
    Message& message = memory_.message(source, memory_.rank(), position);
    if (message.filled.load(std::memory_order_acquire) != position + 1) return;
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
    message.taken.store(position + 1, std::memory_order_seq_cst);
    waiting_.notify(true);
  }
}

Mailbox::Letter Mailbox::open(int source, const Message& message) const {
  Letter letter{source, message.tag, message.bytes, {}, nullptr, nullptr};
  if (message.data == kNowhere) {
    letter.eager.assign(reinterpret_cast<const char*>(message.eager),
                        std::min<std::size_t>(message.bytes, kEagerBytes));
  } else {
    letter.data = memory_.resolve(source, message.data);
    letter.consumed = reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.resolve(source, message.consumed));
  }
  return letter;
}

void Mailbox::deliver(Transfer& receive, const Letter& letter) {
  receive.from = letter.from;
  if (receive.target.bytes != letter.bytes) {
    receive.status = {ErrorCode::kMismatch,
                      fmt::format("recv from rank {} with tag {}: expected {} bytes, the message has {}", letter.from,
                                  letter.tag, receive.target.bytes, letter.bytes)};
  } else if (letter.bytes > 0) {
    const void* data = letter.data != nullptr ? static_cast<const void*>(letter.data) : letter.eager.data();
    copy_cached(receive.target.data, data, letter.bytes);
    // The sender may have taken its memory back meanwhile; it breaks the group before it does.
    if (letter.data != nullptr && waiting_.aborted()) receive.status = waiting_.abort_status();
  }
  if (letter.consumed != nullptr) {
    letter.consumed->store(1, std::memory_order_seq_cst);
    waiting_.notify(true);
  }
  receive.over = true;
}

}  // namespace lockstep::comm
