#include "net/ucx/ucx_inbox.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>
#include <utility>

namespace lockstep::comm {

const Status& UcxInbox::lost() {
  static const Status status(ErrorCode::kPeerFailed, "the connection is lost");
  return status;
}

bool UcxInbox::put(const UcxFrame& frame, std::string_view text, const void* data, std::size_t bytes) {
  using Kind = UcxFrame::Kind;
  ++count_;
  switch (frame.kind) {
    case Kind::kOpen: openers_.emplace(frame.from, std::string(static_cast<const char*>(data), bytes)); break;
    case Kind::kEnd:
      openers_.erase(frame.from);
      lose(frame.from);
      break;
    case Kind::kTagged:
    case Kind::kOffered: return put_part(frame, data, bytes);
    case Kind::kMessage: {
      ActiveMessage message{std::string(text), std::string(static_cast<const char*>(data), bytes), bytes};
      add(Arrived{std::move(message), frame.from, 0});
      break;
    }
    case Kind::kOffer: add(Arrived{ActiveMessage{std::string(text), {}, frame.bytes}, frame.from, frame.tag}); break;
    case Kind::kTaken: {
      const auto offer = offers_.find(frame.tag);
      if (offer == offers_.end() || offer->second.to != frame.from) break;
      offer->second.is_over = true;
      end_if_over(offer);
      break;
    }
    case Kind::kWanted: break;  // the worker sends the message
  }
  return false;
}

bool UcxInbox::put_part(const UcxFrame& frame, const void* data, std::size_t bytes) {
  const Key key{frame.from, frame.kind == UcxFrame::Kind::kOffered, frame.tag};
  Lane& lane = lanes_[key];
  if (!lane.receives.empty()) {
    Receive& receive = lane.receives.front();
    add_part(receive, frame.bytes, frame.offset, data, bytes);
    if (receive.arrived < frame.bytes) return false;
    finish(receive, frame.bytes);
    lane.receives.pop_front();
    forget_if_empty(key);
    return key.is_offered;
  }
  if (frame.offset == 0) lane.early.push_back({frame.bytes, {}});
  if (!lane.early.empty()) lane.early.back().arrived.append(static_cast<const char*>(data), bytes);
  forget_if_empty(key);
  return false;
}

void UcxInbox::add_part(Receive& receive, std::uint64_t total, std::uint64_t offset, const void* data,
                        std::size_t bytes) {
  // UCX keeps the order of messages on a connection, so the parts come in order.
  receive.is_whole = receive.is_whole && offset == receive.arrived && offset <= total && bytes <= total - offset;
  if (receive.is_whole && total == receive.bytes && bytes > 0) std::memcpy(receive.data + offset, data, bytes);
  receive.arrived += bytes;
}

void UcxInbox::finish(const Receive& receive, std::uint64_t total) {
  if (!receive.is_whole) {
    end(receive.request, {ErrorCode::kPeerFailed, "the parts of a message came in the wrong order"});
  } else if (total != receive.bytes) {
    end(receive.request,
        {ErrorCode::kMismatch, fmt::format("expected a message of {} bytes, found {}", receive.bytes, total)});
  } else {
    end(receive.request, {});
  }
}

void UcxInbox::receive(const Key& key, void* data, std::size_t bytes, TransportRequest& request) {
  const auto known = lanes_.find(key);
  const bool is_early = known != lanes_.end() && !known->second.early.empty();
  if (!is_early && lost_.contains(key.from)) return end(&request, lost());
  Lane& lane = lanes_[key];
  Receive receive{static_cast<std::byte*>(data), bytes, &request};
  if (!is_early) {
    lane.receives.push_back(receive);
    return;
  }
  const Early early = std::move(lane.early.front());
  lane.early.pop_front();
  add_part(receive, early.bytes, 0, early.arrived.data(), early.arrived.size());
  if (receive.arrived < early.bytes) {
    lane.receives.push_back(receive);
  } else {
    finish(receive, early.bytes);
    forget_if_empty(key);
  }
}

void UcxInbox::forget_if_empty(const Key& key) {
  const auto lane = lanes_.find(key);
  if (lane->second.receives.empty() && lane->second.early.empty()) lanes_.erase(lane);
}

// A receive of a tagged message stays: its group decides what the loss means.
void UcxInbox::lose(std::uint64_t from) {
  if (!lost_.insert(from).second) return;
  for (auto lane = lanes_.lower_bound({from, true, 0}); lane != lanes_.end() && lane->first.from == from;) {
    for (const Receive& receive : lane->second.receives) end(receive.request, lost());
    lane = lanes_.erase(lane);
  }
  for (auto offer = offers_.begin(); offer != offers_.end();) {
    const auto next = std::next(offer);
    if (offer->second.to == from && !offer->second.is_over) {
      offer->second.is_over = true;
      offer->second.status = lost();
      end_if_over(offer);
    }
    offer = next;
  }
  add(Lost{from});
}

std::uint64_t UcxInbox::keep(const Offer& offer) {
  if (lost_.contains(offer.to)) {
    end(offer.request, lost());
  } else {
    offers_.emplace(++last_offer_, offer);
  }
  return last_offer_;
}

const UcxInbox::Offer* UcxInbox::want(std::uint64_t number, std::uint64_t from) {
  const auto found = offers_.find(number);
  if (found == offers_.end() || found->second.to != from || found->second.is_sending || found->second.is_over)
    return nullptr;
  found->second.is_sending = true;
  return &found->second;
}

void UcxInbox::sent(std::uint64_t number, const Status& status) {
  const auto found = offers_.find(number);
  if (found == offers_.end()) return;
  Offer& offer = found->second;
  offer.is_sending = false;
  if (!status.ok() && !offer.is_over) {
    offer.is_over = true;
    offer.status = status;
  }
  end_if_over(found);
}

void UcxInbox::end_if_over(std::map<std::uint64_t, Offer>::iterator offer) {
  if (!offer->second.is_over || offer->second.is_sending) return;
  end(offer->second.request, offer->second.status);
  offers_.erase(offer);
}

void UcxInbox::cancel(const Status& why) {
  for (const auto& [key, lane] : lanes_) {
    for (const Receive& receive : lane.receives) end(receive.request, why);
  }
  for (const auto& [number, offer] : offers_) end(offer.request, why);
  lanes_.clear();
  offers_.clear();
}

bool UcxInbox::take_events(std::vector<Event>& events) {
  const bool news = has_news();
  taken_ = count_;
  events.swap(events_);
  return news;
}

}  // namespace lockstep::comm
