#include "attendance.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/number_text.h"

namespace lockstep::comm {
namespace {

// As long as connections of a TcpStore survive. A process that ends is seen at once all the same.
constexpr auto kLostAfter = std::chrono::seconds(60);
constexpr auto kListTime = std::chrono::seconds(5);  // the values are in the store

}  // namespace

std::chrono::milliseconds pause_of_questions(Deadline::Clock::time_point since, std::chrono::milliseconds at_first) {
  constexpr auto kOften = std::chrono::seconds(1);
  return Deadline::Clock::now() - since < kOften ? at_first : std::chrono::seconds(1);
}

Result<std::shared_ptr<Attendance>> Attendance::open(const TcpStoreOptions& options, std::string id,
                                                     Deadline deadline) {
  TcpStoreOptions server = options;
  server.tries_again = false;
  LOCKSTEP_ASSIGN_OR_RETURN(auto store, TcpStore::connect(server, deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(auto session, StoreSession::connect(server, deadline, /*interrupt_fd=*/-1));
  return std::make_shared<Attendance>(std::move(store), std::move(session), std::move(id), server.server);
}

Status Attendance::come(const std::string& meeting) {
  MutexLock lock(mutex_);
  list_ = meeting + "/ended";
  seen_ = 0;
  known_.clear();
  return session_.leave_will(list_, id_, kLostAfter);
}

void Attendance::leave() {
  MutexLock lock(mutex_);
  if (list_.empty()) return;
  list_.clear();
  static_cast<void>(session_.leave_will({}, {}, kLostAfter));
  session_ = StoreSession();
}

Result<std::vector<std::string>> Attendance::ended() const {
  std::string list;
  {
    MutexLock lock(mutex_);
    list = list_;
  }
  if (list.empty()) return std::vector<std::string>();
  auto ids = ask_for_ends(list);
  MutexLock lock(mutex_);
  if (list != list_) return ids;
  if (ids.status().code() == ErrorCode::kTimeout) return known_;
  if (ids.ok()) {
    seen_ = ids->size();
    known_ = ids.value();
  }
  return ids;
}

Result<std::vector<std::string>> Attendance::ask_for_ends(const std::string& list) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool any, store_->check({&list, 1}));
  if (!any) return std::vector<std::string>();
  LOCKSTEP_ASSIGN_OR_RETURN(const Bytes count, store_->get(list, Deadline::after(kListTime)));
  std::vector<std::string> keys;
  for (int number = 1; number <= number_from_text<int>(count).value_or(0); ++number)
    keys.push_back(fmt::format("{}/{}", list, number));
  return store_->multi_get(keys, Deadline::after(kListTime));
}

std::string Attendance::next_end() const {
  MutexLock lock(mutex_);
  return list_.empty() ? std::string() : fmt::format("{}/{}", list_, seen_ + 1);
}

Status Attendance::check(const std::vector<ReconfigureHandle>& members) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> ids, ended());
  for (const ReconfigureHandle& member : members) {
    if (std::find(ids.begin(), ids.end(), member.id) == ids.end()) continue;
    return {ErrorCode::kPeerFailed, fmt::format("{} died or left meanwhile", describe(member))};
  }
  return {};
}

}  // namespace lockstep::comm
