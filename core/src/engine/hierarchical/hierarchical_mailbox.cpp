#include "hierarchical_mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fault_point.h"

namespace lockstep::comm {

void HierarchicalMailbox::start(std::shared_ptr<Operation::State> state) {
  Transfer& transfer = state->transfer;
  states_.push_back(std::move(state));
  if (transfer.is_send) {
    context_.is_local(transfer.peer) ? start_local_send(transfer) : start_send(transfer);
    return;
  }
  receives_.push_back(&transfer);
  progress();
}

void HierarchicalMailbox::start_local_send(Transfer& transfer) {
  Transfer inside = transfer;
  inside.peer = context_.topology.index_of(transfer.peer);
  auto started = local_.launch(inside, nullptr);
  if (started.ok()) {
    local_sends_.push_back({&transfer, std::move(started).value()});
  } else {
    transfer.status = started.status();
    end(transfer);
  }
}

void HierarchicalMailbox::start_send(Transfer& transfer) {
  ActiveMessageHeader header;
  header.source = context_.rank;
  header.tag = transfer.tag;
  under_way_.push_back({&transfer, TransportRequest()});
  LOCKSTEP_FAULT_POINT("hierarchical: message");
  context_.transport.post(transfer.peer, pack_header(header, context_.token), transfer.source.data,
                          transfer.source.bytes, under_way_.back().request);
}

void HierarchicalMailbox::arrived(const ActiveMessageHeader& header, ActiveMessage message) {
  unexpected_.push_back({header.source, header.tag, message.bytes, std::move(message.data), message.handle});
}

bool HierarchicalMailbox::try_local(Transfer& transfer, MessageLook& look) {
  const bool any = transfer.peer == kAnySource;
  if (!any && !context_.is_local(transfer.peer)) return false;
  Transfer inside = transfer;
  if (!any) inside.peer = context_.topology.index_of(transfer.peer);
  if (!local_.try_receive(inside, look)) return false;
  transfer.status = inside.status;
  transfer.from = context_.topology.rank_at(context_.machine(), inside.from);
  end(transfer);
  return true;
}

void HierarchicalMailbox::deliver(Transfer& transfer, Arrival& arrival) {
  transfer.from = arrival.source;
  if (transfer.target.bytes != arrival.bytes) {
    if (arrival.handle != nullptr) context_.transport.discard(arrival.handle);
    transfer.status = {
        ErrorCode::kMismatch,
        fmt::format("recv from {} with tag {}: expected {} bytes, the message has {}",
                    context_.names.ranks.name(arrival.source), arrival.tag, transfer.target.bytes, arrival.bytes)};
  } else if (arrival.handle != nullptr) {
    under_way_.push_back({&transfer, TransportRequest()});
    context_.transport.fetch(arrival.handle, transfer.target.data, arrival.bytes, under_way_.back().request);
    return;
  } else if (arrival.bytes > 0) {
    std::memcpy(transfer.target.data, arrival.data.data(), arrival.bytes);
  }
  end(transfer);
}

bool HierarchicalMailbox::progress() {
  auto here = local_.progress_messages();
  bool moved = (here || !unexpected_.empty()) && match_receives(std::move(here));
  moved = end_messages() || moved;
  return end_local_sends() || moved;
}

bool HierarchicalMailbox::match_receives(std::optional<MessageLook> here) {
  bool moved = false;
  for (auto receive = receives_.begin(); receive != receives_.end();) {
    Transfer& transfer = **receive;
    const auto matching = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Arrival& arrival) {
      return arrival.tag == transfer.tag && (transfer.peer == kAnySource || transfer.peer == arrival.source);
    });
    if (matching != unexpected_.end()) {
      deliver(transfer, *matching);
      unexpected_.erase(matching);
    } else if (!here || !try_local(transfer, *here)) {
      ++receive;
      continue;
    }
    moved = true;
    receive = receives_.erase(receive);
  }
  return moved;
}

bool HierarchicalMailbox::end_messages() {
  bool moved = false;
  for (auto item = under_way_.begin(); item != under_way_.end();) {
    if (!item->request.done) {
      ++item;
      continue;
    }
    if (item->transfer->status.ok()) item->transfer->status = item->request.status;
    end(*item->transfer);
    item = under_way_.erase(item);
    moved = true;
  }
  return moved;
}

bool HierarchicalMailbox::end_local_sends() {
  bool moved = false;
  for (auto send = local_sends_.begin(); send != local_sends_.end();) {
    // If the send is not over, the local group may be broken.
    const bool over = send->local->over.load(std::memory_order_acquire);
    if (!over && !local_.waiting().aborted()) {
      ++send;
      continue;
    }
    send->transfer->status = over ? send->local->status : local_.health();
    end(*send->transfer);
    send = local_sends_.erase(send);
    moved = true;
  }
  return moved;
}

void HierarchicalMailbox::end(Transfer& transfer) {
  transfer.over = true;
  some_ended_ = true;
}

const Transfer* HierarchicalMailbox::finish() {
  const Transfer* lost = nullptr;
  if (!some_ended_) return lost;
  std::erase_if(states_, [&](const std::shared_ptr<Operation::State>& state) {
    const Transfer& transfer = state->transfer;
    if (!transfer.over) return false;
    if (transfer.status.code() == ErrorCode::kPeerFailed) {
      lost = &transfer;
      return false;
    }
    state->status = transfer.status;
    state->keep_alive.reset();
    state->over.store(true, std::memory_order_release);
    return true;
  });
  some_ended_ = lost != nullptr;
  return lost;
}

void HierarchicalMailbox::fail(const Status& status) {
  receives_.clear();
  under_way_.clear();
  local_sends_.clear();
  for (const auto& state : states_) {
    state->status = status;
    state->over.store(true, std::memory_order_release);
  }
  states_.clear();
}

}  // namespace lockstep::comm
