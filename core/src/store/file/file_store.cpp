#include "lockstep/store/file_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "store/file/file_log.h"
#include "store/keys/key_value_table.h"

namespace lockstep::comm {
namespace {

using RecordKind = FileLog::RecordKind;

}  // namespace

FileStore::FileStore(OwnedLog log) : log_(std::move(log)) {}
FileStore::~FileStore() = default;

Result<std::shared_ptr<FileStore>> FileStore::open(std::string path) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto log, FileLog::open(std::move(path)));
  return std::shared_ptr<FileStore>(new FileStore(std::move(log)));
}

Status FileStore::set(std::string_view key, std::string_view value) {
  return set_by(key, value, log_->patience());
}

Status FileStore::set_by(std::string_view key, std::string_view value, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, value.size()));
  return log_->update(deadline,
                      [&](const KeyValueTable&, const auto& write) { return write(RecordKind::kSet, key, value); });
}

Result<Bytes> FileStore::get(std::string_view key, Deadline deadline) {
  // Another rank may delete the key between the wait and the read.
  while (true) {
    const std::string name(key);
    LOCKSTEP_RETURN_IF_ERROR(wait({&name, 1}, deadline));
    std::optional<Bytes> value;
    const auto read = log_->read(log_->patience(deadline), [&](const KeyValueTable& table) {
      if (const Bytes* found = table.find(key)) value = *found;
    });
    LOCKSTEP_RETURN_IF_ERROR(read.status());
    if (value) return *std::move(value);
  }
}

Result<std::int64_t> FileStore::add(std::string_view key, std::int64_t amount) {
  std::int64_t sum = 0;
  LOCKSTEP_RETURN_IF_ERROR(log_->update(log_->patience(), [&](const KeyValueTable& table, const auto& write) -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(sum, table.sum(key, amount));
    return write(RecordKind::kSet, key, std::to_string(sum));
  }));
  return sum;
}

Result<Bytes> FileStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  LOCKSTEP_RETURN_IF_ERROR(check_entry(key, desired.size()));
  Bytes result;
  LOCKSTEP_RETURN_IF_ERROR(log_->update(log_->patience(), [&](const KeyValueTable& table, const auto& write) -> Status {
    if (table.matches(key, expected)) LOCKSTEP_RETURN_IF_ERROR(write(RecordKind::kSet, key, desired));
    if (const Bytes* found = table.find(key)) result = *found;
    return {};
  }));
  return result;
}

Status FileStore::append(std::string_view key, std::string_view value) {
  return log_->update(log_->patience(), [&](const KeyValueTable& table, const auto& write) -> Status {
    LOCKSTEP_RETURN_IF_ERROR(table.check_append(key, value));
    return write(RecordKind::kAppend, key, value);
  });
}

Status FileStore::wait(std::span<const std::string> keys, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_keys(keys));
  auto pause = std::chrono::microseconds(100);
  while (true) {
    Status late;
    bool complete = false;
    const auto seen = log_->read(log_->patience(deadline), [&](const KeyValueTable& table) {
      complete = table.first_missing(keys) == nullptr;
      if (!complete && deadline.expired()) late = table.timeout(keys, fmt::format("store file {}", log_->path()));
    });
    LOCKSTEP_RETURN_IF_ERROR(seen.status());
    if (complete || !late.ok()) return late;
    // No event tells of a write on another machine, so look again, less and less often.
    while (!log_->has_news(seen.value()) && !deadline.expired()) {
      std::this_thread::sleep_for(std::min(std::chrono::nanoseconds(pause), deadline.remaining()));
      pause = std::min(pause * 2, std::chrono::microseconds(10000));
    }
  }
}

Result<bool> FileStore::check(std::span<const std::string> keys) {
  LOCKSTEP_RETURN_IF_ERROR(check_keys(keys));
  bool complete = false;
  const auto read = log_->read(log_->patience(),
                               [&](const KeyValueTable& table) { complete = table.first_missing(keys) == nullptr; });
  LOCKSTEP_RETURN_IF_ERROR(read.status());
  return complete;
}

Result<bool> FileStore::delete_key(std::string_view key) {
  LOCKSTEP_RETURN_IF_ERROR(check_key(key));
  bool existed = false;
  LOCKSTEP_RETURN_IF_ERROR(log_->update(log_->patience(), [&](const KeyValueTable& table, const auto& write) -> Status {
    existed = table.find(key) != nullptr;
    return existed ? write(RecordKind::kErase, key, "") : Status();
  }));
  return existed;
}

Result<std::int64_t> FileStore::num_keys() {
  std::int64_t count = 0;
  const auto read = log_->read(log_->patience(),
                               [&](const KeyValueTable& table) { count = static_cast<std::int64_t>(table.size()); });
  LOCKSTEP_RETURN_IF_ERROR(read.status());
  return count;
}

}  // namespace lockstep::comm
