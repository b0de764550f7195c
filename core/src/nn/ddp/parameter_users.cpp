#include "parameter_users.h"

#include <atomic>
#include <unordered_map>
#include <utility>

#include "lockstep/base/mutex.h"

namespace lockstep::nn_detail {
namespace {

struct AllUsers {
  std::atomic<std::uint64_t> version{1};
  Mutex mutex;  // guards what the entries point to, too
  std::unordered_map<const void*, std::weak_ptr<ParameterUsers>> of LOCKSTEP_GUARDED_BY(mutex);  // by TensorImpl
  std::size_t sweep_at LOCKSTEP_GUARDED_BY(mutex) = 64;  // entries of parameters without users go then
};

AllUsers& all_users() {
  static AllUsers& all = *new AllUsers;  // reducers may be static objects
  return all;
}

}  // namespace

std::vector<int> ranks_of(const ProcessGroup& group) {
  return is_initialized() ? get_process_group_ranks(group) : std::vector<int>();
}

UsersPtr join_users(const torch::Tensor& parameter, const std::vector<int>& ranks, std::weak_ptr<void> reducer) {
  AllUsers& all = all_users();
  count_user_change();
  MutexLock lock(all.mutex);
  if (all.of.size() >= all.sweep_at) {
    std::erase_if(all.of, [](const auto& entry) { return entry.second.expired(); });
    all.sweep_at = 2 * all.of.size() + 64;
  }
  std::weak_ptr<ParameterUsers>& known = all.of[parameter.unsafeGetTensorImpl()];
  std::shared_ptr<ParameterUsers> users = known.lock();
  if (!users) known = users = std::make_shared<ParameterUsers>(ranks);
  std::erase_if(users->reducers, [](const auto& other) { return other.expired(); });
  users->reducers.push_back(std::move(reducer));
  return users;
}

UsersPtr users_of(const torch::Tensor& parameter) {
  AllUsers& all = all_users();
  MutexLock lock(all.mutex);
  const auto found = all.of.find(parameter.unsafeGetTensorImpl());
  return found == all.of.end() ? nullptr : found->second.lock();
}

std::vector<std::shared_ptr<void>> reducers_of(const UsersPtr& users) {
  std::vector<std::shared_ptr<void>> living;
  MutexLock lock(all_users().mutex);
  for (const std::weak_ptr<void>& reducer : users->reducers) {
    if (auto one = reducer.lock()) living.push_back(std::move(one));
  }
  return living;
}

std::uint64_t users_version() {
  return all_users().version.load(std::memory_order_relaxed);
}

void count_user_change() {
  all_users().version.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep::nn_detail
