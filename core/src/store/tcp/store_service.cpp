#include "store/tcp/store_service.h"

#include <fmt/format.h>

namespace lockstep::comm {

void StoreService::handle(ClientId client, wire::Message request) {
  const auto op = static_cast<wire::Op>(request.kind);
  if ((op == wire::kPush || op == wire::kWill) && request.parts.size() == 2) {
    if (op == wire::kPush) {
      answer_(client, wire::answer_of(push(request.parts[0], request.parts[1])));
    } else {
      wills_.erase(client);
      if (!request.parts[0].empty()) wills_.emplace(client, std::pair(request.parts[0], request.parts[1]));
      answer_(client, wire::answer_of(StoreAnswer()));
    }
    return wake_changed();
  }
  if (op == wire::kDeletePrefix && request.parts.size() == 1)
    return answer_(client, wire::answer_of(StoreAnswer{.number = table_.erase_prefix(request.parts[0])}));
  const std::size_t parts = request.parts.size();
  std::optional<StoreCall> call = wire::call_of(std::move(request));
  if (!call) {
    return answer_(client, wire::failure({ErrorCode::kUnsupported,
                                          fmt::format("{} does not know request {} with {} parts; are all ranks "
                                                      "built with the same Lockstep?",
                                                      where_, static_cast<int>(op), parts)}));
  }
  if (const Status limits = check_limits(*call); !limits.ok()) return answer_(client, wire::failure(limits));
  if (call->waits()) return answer_or_park(client, *std::move(call));
  answer_(client, wire::answer_of(table_.answer(*call, [this](auto... change) { return write(change...); })));
  wake_changed();
}

Status StoreService::write(KeyValueTable::Change change, std::string_view key, std::string_view value) {
  table_.apply(change, key, value);
  changed_.emplace_back(key);
  return {};
}

void StoreService::wake_changed() {
  for (const auto& key : std::exchange(changed_, {})) wake(key);
}

Result<StoreAnswer> StoreService::push(const std::string& list, const std::string& value) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(list, value.size()));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::int64_t count, table_.sum(list, 1));
  LOCKSTEP_RETURN_IF_ERROR(write(KeyValueTable::Change::kSet, fmt::format("{}/{}", list, count), value));
  LOCKSTEP_RETURN_IF_ERROR(write(KeyValueTable::Change::kSet, list, std::to_string(count)));
  return StoreAnswer{.number = count};
}

wire::Message StoreService::values_of(const std::vector<std::string>& keys) const {
  wire::Message answer = wire::answer_of(StoreAnswer());
  std::size_t bytes = wire::body_bytes({});
  for (const auto& key : keys) {
    const Bytes& value = *table_.find(key);
    bytes += 4 + value.size();
    if (bytes > wire::kMaxFrameBytes) break;
    answer.parts.push_back(value);
  }
  return answer;
}

void StoreService::answer_or_park(ClientId client, StoreCall call) {
  const std::string* missing = table_.first_missing(call.keys);
  if (missing == nullptr) {
    const bool wants_values = call.op == StoreCall::Op::kGet;
    return answer_(client, wants_values ? values_of(call.keys) : wire::answer_of(StoreAnswer()));
  }
  if (!call.unless.empty() && table_.find(call.unless) != nullptr) {
    return answer_(
        client, wire::failure({ErrorCode::kAborted, fmt::format("'{}' was set in {} while waiting for {}", call.unless,
                                                                where_, quote_keys(call.keys))}));
  }
  if (call.deadline.expired()) return answer_(client, wire::failure(table_.timeout(call.keys, where_)));
  waiting_[*missing].insert(client);
  if (!call.unless.empty()) waiting_[call.unless].insert(client);
  if (!call.deadline.is_never()) expiries_.emplace(call.deadline.when(), client);
  std::string waits_for = *missing;
  parked_.insert_or_assign(client, Parked{std::move(call), std::move(waits_for)});
}

StoreService::Parked StoreService::unpark(ClientId client) {
  Parked parked = std::move(parked_.extract(client).mapped());
  expiries_.erase({parked.call.deadline.when(), client});
  for (const std::string* key : {&parked.waits_for, &parked.call.unless}) {
    const auto waiters = waiting_.find(*key);
    if (waiters == waiting_.end()) continue;
    waiters->second.erase(client);
    if (waiters->second.empty()) waiting_.erase(waiters);
  }
  return parked;
}

void StoreService::wake(std::string_view key) {
  const auto waiters = waiting_.find(key);
  if (waiters == waiting_.end()) return;
  for (const ClientId client : std::set<ClientId>(waiters->second)) {
    answer_or_park(client, unpark(client).call);
  }
}

void StoreService::drop(ClientId client) {
  if (parked_.contains(client)) unpark(client);
  const auto will = wills_.extract(client);
  if (will.empty()) return;
  static_cast<void>(push(will.mapped().first, will.mapped().second));
  wake_changed();
}

void StoreService::expire(Deadline::Clock::time_point now) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const ClientId client = expiries_.begin()->second;
    const Parked parked = unpark(client);
    answer_(client, wire::failure(table_.timeout(parked.call.keys, where_)));
  }
}

Deadline StoreService::next_expiry() const {
  return expiries_.empty() ? Deadline::never() : Deadline::at(expiries_.begin()->first);
}

}  // namespace lockstep::comm
