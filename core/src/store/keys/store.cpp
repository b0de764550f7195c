#include "lockstep/store/store.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "lockstep/base/mutex.h"
#include "lockstep/store/hash_store.h"
#include "lockstep/store/prefix_store.h"
#include "store/keys/key_value_table.h"

namespace lockstep::comm {
namespace {

using Op = StoreCall::Op;

std::vector<std::string> list_of(std::span<const std::string> items) {
  return {items.begin(), items.end()};
}

}  // namespace

Result<StoreAnswer> Store::ask(StoreCall call) {
  LOCKSTEP_RETURN_IF_ERROR(check_limits(call));
  return answer(std::move(call));
}

Status Store::set(std::string_view key, std::string_view value, Deadline deadline) {
  return ask({.op = Op::kSet, .keys = {std::string(key)}, .values = {Bytes(value)}, .deadline = deadline}).status();
}

Result<Bytes> Store::get(std::string_view key, Deadline deadline) {
  const std::string name(key);
  LOCKSTEP_ASSIGN_OR_RETURN(auto values, multi_get({&name, 1}, deadline));
  return std::move(values[0]);
}

Result<std::int64_t> Store::add(std::string_view key, std::int64_t amount) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, ask({.op = Op::kAdd, .keys = {std::string(key)}, .amount = amount}));
  return answer.number;
}

Result<Bytes> Store::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      auto answer,
      ask({.op = Op::kCompareSet, .keys = {std::string(key)}, .values = {Bytes(expected), Bytes(desired)}}));
  return std::move(answer.values[0]);
}

Status Store::append(std::string_view key, std::string_view value) {
  return ask({.op = Op::kAppend, .keys = {std::string(key)}, .values = {Bytes(value)}}).status();
}

Status Store::wait(std::span<const std::string> keys, Deadline deadline) {
  return ask({.op = Op::kWait, .keys = list_of(keys), .deadline = deadline}).status();
}

Result<bool> Store::check(std::span<const std::string> keys) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, ask({.op = Op::kCheck, .keys = list_of(keys)}));
  return answer.number != 0;
}

Result<bool> Store::delete_key(std::string_view key) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, ask({.op = Op::kDelete, .keys = {std::string(key)}}));
  return answer.number != 0;
}

Result<std::int64_t> Store::num_keys() {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto answer, ask({}));
  return answer.number;
}

Status Store::multi_set(std::span<const std::string> keys, std::span<const Bytes> values) {
  if (keys.size() != values.size()) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("multi_set needs one value per key, found {} keys and {} values", keys.size(), values.size())};
  }
  return ask({.op = Op::kSet, .keys = list_of(keys), .values = list_of(values)}).status();
}

Result<std::vector<Bytes>> Store::multi_get(std::span<const std::string> keys, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto answer, ask({.op = Op::kGet, .keys = list_of(keys), .deadline = deadline}));
  return std::move(answer.values);
}

struct HashStore::State {
  Mutex mutex;
  CondVar changed;
  KeyValueTable table LOCKSTEP_GUARDED_BY(mutex);

  Status wait(std::span<const std::string> keys, Deadline deadline) LOCKSTEP_REQUIRES(mutex) {
    while (table.first_missing(keys) != nullptr) {
      if (deadline.is_never()) {
        changed.wait(mutex);
      } else if (deadline.expired()) {
        return table.timeout(keys, "the in-process store");
      } else {
        changed.wait_until(mutex, deadline.when());
      }
    }
    return {};
  }
};

HashStore::HashStore() : state_(std::make_unique<State>()) {}
HashStore::~HashStore() = default;

Result<StoreAnswer> HashStore::answer(StoreCall call) {
  MutexLock lock(state_->mutex);
  if (call.waits()) LOCKSTEP_RETURN_IF_ERROR(state_->wait(call.keys, call.deadline));
  const auto write = [this](KeyValueTable::Change change, std::string_view key, std::string_view value)
                         LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
                           state_->table.apply(change, key, value);
                           state_->changed.notify_all();
                           return Status();
                         };
  return state_->table.answer(call, write);
}

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> inner)
    : prefix_(std::move(prefix)), inner_(std::move(inner)) {}

Result<StoreAnswer> PrefixStore::answer(StoreCall call) {
  for (std::string& key : call.keys) key.insert(0, prefix_ + "/");
  return inner_->ask(std::move(call));
}

}  // namespace lockstep::comm
