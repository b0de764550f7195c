#include "hierarchical_mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/fault_point.h"

namespace lockstep::comm {

void HierarchicalMailbox::start(Transfer& transfer) {
  if (!transfer.is_send) {
    receives_.push_back(&transfer);
    progress();
    return;
  }
  if (is_local(transfer.peer)) {
    Transfer inside = transfer;
    inside.peer = topology_.index_of(transfer.peer);
    auto started = local_.launch(inside, nullptr);
    if (started.ok()) {
      local_sends_.push_back({&transfer, std::move(started).value()});
    } else {
      transfer.status = started.status();
      transfer.over = true;
    }
    return;
  }
  ActiveMessageHeader header;
  header.source = rank_;
  header.tag = transfer.tag;
  under_way_.push_back({&transfer, TransportRequest()});
  const std::string text = token_ + std::string(reinterpret_cast<const char*>(&header), sizeof header);
  LOCKSTEP_FAULT_POINT("hierarchical: message");
  transport_.post(transfer.peer, text, transfer.source.data, transfer.source.bytes, under_way_.back().request);
}

void HierarchicalMailbox::withdraw(Transfer& transfer) {
  receives_.remove(&transfer);
  under_way_.remove_if([&](const UnderWay& item) { return item.transfer == &transfer; });
  local_sends_.remove_if([&](const LocalSend& item) { return item.transfer == &transfer; });
}

void HierarchicalMailbox::arrived(const ActiveMessageHeader& header, const ActiveMessage& message) {
  Arrival arrival{header.source, header.tag, message.bytes, {}, message.handle};
  if (message.data != nullptr) arrival.data.assign(static_cast<const char*>(message.data), message.bytes);
  unexpected_.push_back(std::move(arrival));
}

bool HierarchicalMailbox::try_local(Transfer& transfer) {
  const bool any = transfer.peer == kAnySource;
  if (!any && !is_local(transfer.peer)) return false;
  Transfer inside = transfer;
  if (!any) inside.peer = topology_.index_of(transfer.peer);
  if (!local_.try_receive(inside)) return false;
  transfer.status = inside.status;
  transfer.from = topology_.rank_at(topology_.machine_of(rank_), inside.from);
  transfer.over = true;
  return true;
}

void HierarchicalMailbox::deliver(Transfer& transfer, Arrival& arrival) {
  transfer.from = arrival.source;
  if (transfer.target.bytes != arrival.bytes) {
    if (arrival.handle != nullptr) transport_.discard(arrival.handle);
    transfer.status = {ErrorCode::kMismatch,
                       fmt::format("recv from {} with tag {}: expected {} bytes, the message has {}",
                                   roster_.name(arrival.source), arrival.tag, transfer.target.bytes, arrival.bytes)};
  } else if (arrival.handle != nullptr) {
    under_way_.push_back({&transfer, TransportRequest()});
    transport_.fetch(arrival.handle, transfer.target.data, arrival.bytes, under_way_.back().request);
    return;
  } else if (arrival.bytes > 0) {
    std::memcpy(transfer.target.data, arrival.data.data(), arrival.bytes);
  }
  transfer.over = true;
}

bool HierarchicalMailbox::progress() {
  bool moved = false;
  local_.progress_messages();
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
    if (!item->request.done) {
      ++item;
      continue;
    }
    if (item->transfer->status.ok()) item->transfer->status = item->request.status;
    item->transfer->over = true;
    item = under_way_.erase(item);
    moved = true;
  }
  for (auto send = local_sends_.begin(); send != local_sends_.end();) {
    if (!local_.test_locally(*send->local)) {
      ++send;
      continue;
    }
    // If the send is not over, the local group is broken.
    const bool over = send->local->over.load(std::memory_order_acquire);
    send->transfer->status = over ? send->local->status : local_.health();
    send->transfer->over = true;
    send = local_sends_.erase(send);
    moved = true;
  }
  return moved;
}

}  // namespace lockstep::comm
