#include "store/tcp/store_service.h"

#include <fmt/format.h>

namespace lockstep::comm {
namespace {

using wire::Message;
using wire::Op;

// Whether the request is one that our clients send: a known kind with the right number of parts.
bool well_formed(const Message& request) {
  const std::size_t count = request.parts.size();
  switch (static_cast<Op>(request.kind)) {
    case Op::kSet:
    case Op::kAppend:
    case Op::kPush:
    case Op::kWill: return count == 2;
    case Op::kAdd:
    case Op::kDelete: return count == 1;
    case Op::kCompareSet: return count == 3;
    case Op::kNumKeys: return count == 0;
    case Op::kMultiSet: return count % 2 == 0;
    case Op::kGet:
    case Op::kWait:
    case Op::kCheck: return true;
  }
  return false;
}

Deadline deadline_of(const Message& request) {
  // Above a year counts as never, as in Deadline itself; this also keeps the conversion from overflowing.
  constexpr std::int64_t kYear = std::int64_t{1000} * 3600 * 24 * 365;
  if (request.number < 0 || request.number > kYear) return Deadline::never();
  return Deadline::after(std::chrono::milliseconds(request.number));
}

}  // namespace

void StoreService::handle(ClientId client, Message request) {
  if (!well_formed(request)) {
    answer_(client, wire::failure({ErrorCode::kUnsupported,
                                   fmt::format("{} does not know request {} with {} parts; are all ranks "
                                               "built with the same Lockstep?",
                                               where_, request.kind, request.parts.size())}));
    return;
  }
  const Op op = static_cast<Op>(request.kind);
  if (op == Op::kGet || op == Op::kWait) {
    const Deadline deadline = deadline_of(request);
    return answer_or_park(client, std::move(request), deadline);
  }
  if (op == Op::kWill) {
    wills_.insert_or_assign(client, std::pair(request.parts[0], request.parts[1]));
    return answer_(client, wire::success());
  }
  answer_(client, answer_now(request));
  wake_changed();
}

void StoreService::wake_changed() {
  for (const auto& key : std::exchange(changed_, {})) wake(key);
}

Message StoreService::push(const std::string& list, const std::string& value) {
  const auto count = table_.sum(list, 1);
  if (!count.ok()) return wire::failure(count.status());
  const std::string key = fmt::format("{}/{}", list, count.value());
  auto answer = store(table_.set(key, value), key);
  if (wire::status_of(answer).ok()) answer = store(table_.set(list, std::to_string(count.value())), list);
  if (wire::status_of(answer).ok()) answer.number = count.value();
  return answer;
}

Message StoreService::store(const Status& status, std::string_view key) {
  if (!status.ok()) return wire::failure(status);
  changed_.emplace_back(key);
  return wire::success();
}

Message StoreService::answer_now(const Message& request) {
  const auto& parts = request.parts;
  switch (static_cast<Op>(request.kind)) {
    case Op::kSet: return store(table_.set(parts[0], parts[1]), parts[0]);
    case Op::kAppend: return store(table_.append(parts[0], parts[1]), parts[0]);
    case Op::kAdd: {
      const auto sum = table_.sum(parts[0], request.number);
      if (!sum.ok()) return wire::failure(sum.status());
      auto answer = store(table_.set(parts[0], std::to_string(sum.value())), parts[0]);
      answer.number = sum.value();
      return answer;
    }
    case Op::kCompareSet: {
      auto answer =
          table_.matches(parts[0], parts[1]) ? store(table_.set(parts[0], parts[2]), parts[0]) : wire::success();
      const Bytes* value = table_.find(parts[0]);
      if (wire::status_of(answer).ok()) answer.parts.push_back(value == nullptr ? Bytes() : *value);
      return answer;
    }
    case Op::kMultiSet:
      for (std::size_t i = 0; i < parts.size(); i += 2) {
        auto answer = store(table_.set(parts[i], parts[i + 1]), parts[i]);
        if (!wire::status_of(answer).ok()) return answer;
      }
      return wire::success();
    case Op::kPush: return push(parts[0], parts[1]);
    case Op::kCheck: return wire::success(table_.first_missing(parts) == nullptr ? 1 : 0);
    case Op::kDelete: return wire::success(table_.erase(parts[0]) ? 1 : 0);
    case Op::kNumKeys: return wire::success(static_cast<std::int64_t>(table_.size()));
    case Op::kGet:
    case Op::kWait:
    case Op::kWill: break;  // handled before
  }
  return wire::failure({ErrorCode::kInternal, "a waiting request was not parked"});
}

Message StoreService::values_of(const std::vector<std::string>& keys) const {
  auto answer = wire::success();
  std::size_t bytes = wire::body_bytes({});
  for (const auto& key : keys) {
    const Bytes& value = *table_.find(key);
    bytes += 4 + value.size();
    if (bytes > wire::kMaxFrameBytes) break;
    answer.parts.push_back(value);
  }
  return answer;
}

void StoreService::answer_or_park(ClientId client, Message request, Deadline deadline) {
  const std::string* missing = table_.first_missing(request.parts);
  if (missing == nullptr) {
    const bool wants_values = static_cast<Op>(request.kind) == Op::kGet;
    return answer_(client, wants_values ? values_of(request.parts) : wire::success());
  }
  if (deadline.expired()) return answer_(client, wire::failure(table_.timeout(request.parts, where_)));
  waiting_[*missing].insert(client);
  if (!deadline.is_never()) expiries_.emplace(deadline.when(), client);
  std::string waits_for = *missing;
  parked_.insert_or_assign(client, Parked{std::move(request), deadline, std::move(waits_for)});
}

StoreService::Parked StoreService::unpark(ClientId client) {
  Parked parked = std::move(parked_.extract(client).mapped());
  expiries_.erase({parked.deadline.when(), client});
  const auto waiters = waiting_.find(parked.waits_for);
  waiters->second.erase(client);
  if (waiters->second.empty()) waiting_.erase(waiters);
  return parked;
}

void StoreService::wake(std::string_view key) {
  const auto waiters = waiting_.find(key);
  if (waiters == waiting_.end()) return;
  for (const ClientId client : std::set<ClientId>(waiters->second)) {
    Parked parked = unpark(client);
    answer_or_park(client, std::move(parked.request), parked.deadline);
  }
}

void StoreService::drop(ClientId client) {
  if (parked_.contains(client)) unpark(client);
  const auto will = wills_.extract(client);
  if (will.empty()) return;
  push(will.mapped().first, will.mapped().second);
  wake_changed();
}

void StoreService::expire(Deadline::Clock::time_point now) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const ClientId client = expiries_.begin()->second;
    const Parked parked = unpark(client);
    answer_(client, wire::failure(table_.timeout(parked.request.parts, where_)));
  }
}

Deadline StoreService::next_expiry() const {
  return expiries_.empty() ? Deadline::never() : Deadline::at(expiries_.begin()->first);
}

}  // namespace lockstep::comm
