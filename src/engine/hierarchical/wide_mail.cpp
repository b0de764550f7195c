#include "wide_mail.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/fault_point.h"

namespace lockstep::comm {

void WideMail::start(Transfer& transfer) {
  if (!transfer.is_send) {
    receives_.push_back(&transfer);
    pump();
    return;
  }
  if (is_local(transfer.peer)) {
    Transfer inside = transfer;
    inside.peer = layout_.index_of(transfer.peer);
    auto started = local_.launch(inside, nullptr);
    if (started.ok()) {
      local_sends_.push_back({&transfer, std::move(started).value()});
    } else {
      transfer.status = started.status();
      transfer.over = true;
    }
    return;
  }
  WideLetter header;
  header.source = rank_;
  header.tag = transfer.tag;
  under_way_.push_back({&transfer, Parcel()});
  const std::string text = token_ + std::string(reinterpret_cast<const char*>(&header), sizeof header);
  LOCKSTEP_FAULT_POINT("wide: message");
  transport_.post(transfer.peer, text, transfer.source.data, transfer.source.bytes, under_way_.back().parcel);
}

void WideMail::withdraw(Transfer& transfer) {
  receives_.remove(&transfer);
  under_way_.remove_if([&](const UnderWay& item) { return item.transfer == &transfer; });
  local_sends_.remove_if([&](const LocalSend& item) { return item.transfer == &transfer; });
}

void WideMail::arrived(const WideLetter& header, const Letter& letter) {
  Arrival arrival{header.source, header.tag, letter.bytes, {}, letter.ticket};
  if (letter.data != nullptr) arrival.data.assign(static_cast<const char*>(letter.data), letter.bytes);
  unexpected_.push_back(std::move(arrival));
}

bool WideMail::try_local(Transfer& transfer) {
  const bool any = transfer.peer == kAnySource;
  if (!any && !is_local(transfer.peer)) return false;
  Transfer inside = transfer;
  if (!any) inside.peer = layout_.index_of(transfer.peer);
  if (!local_.try_receive(inside)) return false;
  transfer.status = inside.status;
  transfer.from = layout_.rank_at(layout_.machine_of(rank_), inside.from);
  transfer.over = true;
  return true;
}

void WideMail::deliver(Transfer& transfer, Arrival& arrival) {
  transfer.from = arrival.source;
  if (transfer.target.bytes != arrival.bytes) {
    if (arrival.ticket != nullptr) transport_.discard(arrival.ticket);
    transfer.status = {ErrorCode::kMismatch,
                       fmt::format("recv from {} with tag {}: expected {} bytes, the message has {}",
                                   roster_.name(arrival.source), arrival.tag, transfer.target.bytes, arrival.bytes)};
  } else if (arrival.ticket != nullptr) {
    under_way_.push_back({&transfer, Parcel()});
    transport_.fetch(arrival.ticket, transfer.target.data, arrival.bytes, under_way_.back().parcel);
    return;
  } else if (arrival.bytes > 0) {
    std::memcpy(transfer.target.data, arrival.data.data(), arrival.bytes);
  }
  transfer.over = true;
}

bool WideMail::pump() {
  bool moved = false;
  local_.empty_rings();
  for (auto receive = receives_.begin(); receive != receives_.end();) {
    Transfer& transfer = **receive;
    const auto matching = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Arrival& arrival) {
      return arrival.tag == transfer.tag && (transfer.peer == kAnySource || transfer.peer == arrival.source);
    });
    if (matching != unexpected_.end()) {
      deliver(transfer, *matching);
      unexpected_.erase(matching);
    } else if (!try_local(transfer)) {
      ++receive;
      continue;
    }
    moved = true;
    receive = receives_.erase(receive);
  }
  for (auto item = under_way_.begin(); item != under_way_.end();) {
    if (!item->parcel.done) {
      ++item;
      continue;
    }
    if (item->transfer->status.ok()) item->transfer->status = item->parcel.status;
    item->transfer->over = true;
    item = under_way_.erase(item);
    moved = true;
  }
  for (auto send = local_sends_.begin(); send != local_sends_.end();) {
    if (!local_.try_finish(*send->local)) {
      ++send;
      continue;
    }
    // Else the local group is broken.
    const bool over = send->local->over.load(std::memory_order_acquire);
    send->transfer->status = over ? send->local->status : local_.health();
    send->transfer->over = true;
    send = local_sends_.erase(send);
    moved = true;
  }
  return moved;
}

}  // namespace lockstep::comm
