#include "lockstep/store/file_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "store/file/file_log.h"
#include "store/keys/key_value_table.h"

namespace lockstep::comm {
FileStore::FileStore(OwnedLog log) : log_(std::move(log)) {}
FileStore::~FileStore() = default;

Result<std::shared_ptr<FileStore>> FileStore::open(std::string path) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto log, FileLog::open(std::move(path)));
  return std::shared_ptr<FileStore>(new FileStore(std::move(log)));
}

Result<StoreAnswer> FileStore::answer(StoreCall call) {
  if (call.waits()) return wait_and_answer(call);
  const Deadline deadline = earlier(log_->patience(), call.deadline);
  Result<StoreAnswer> answer = StoreAnswer();
  if (call.op == StoreCall::Op::kCheck || call.op == StoreCall::Op::kNumKeys) {
    LOCKSTEP_RETURN_IF_ERROR(
        log_->read(deadline, [&](const KeyValueTable& table) { answer = table.answer(call, {}); }).status());
  } else {
    LOCKSTEP_RETURN_IF_ERROR(log_->update(deadline, [&](const KeyValueTable& table, const auto& write) {
      answer = table.answer(call, write);
      return answer.status();
    }));
  }
  return answer;
}

Result<StoreAnswer> FileStore::wait_and_answer(const StoreCall& call) {
  auto pause = std::chrono::microseconds(100);
  while (true) {
    std::optional<Result<StoreAnswer>> answer;
    const auto seen = log_->read(log_->patience(call.deadline), [&](const KeyValueTable& table) {
      if (table.first_missing(call.keys) == nullptr) {
        answer = table.answer(call, {});
      } else if (call.deadline.expired()) {
        answer = table.timeout(call.keys, fmt::format("store file {}", log_->path()));
      }
    });
    LOCKSTEP_RETURN_IF_ERROR(seen.status());
    if (answer) return *std::move(answer);
    // No event tells of a write on another machine, so look again, less and less often.
    while (!log_->has_news(seen.value()) && !call.deadline.expired()) {
      std::this_thread::sleep_for(std::min(std::chrono::nanoseconds(pause), call.deadline.remaining()));
      pause = std::min(pause * 2, std::chrono::microseconds(10000));
    }
  }
}

}  // namespace lockstep::comm
