#include "lockstep/c10d/group_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "c10d/backend/call_checks.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep {
namespace {

constexpr const char* kOneTensor = "takes a single tensor";

}  // namespace

GroupBackend::GroupBackend(Membership membership)
    : Backend(membership.rank, membership.size), store_(std::move(membership.store)), timeout_(membership.timeout) {
  MutexLock lock(mutex_);
  membership_ = &memberships_.emplace_back(std::move(membership));
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
void GroupBackend::renew(Membership membership) {
  MutexLock lock(mutex_);
  store_ = std::move(membership.store);
  rank_ = membership.rank;
  size_ = membership.size;
  splits_.clear();
  twins_made_ = 0;
  membership_ = &memberships_.emplace_back(std::move(membership));
}
#endif

c10::intrusive_ptr<c10d::Backend::Options> GroupBackend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>(getBackendName(), timeout_.load());
  const Membership& own = membership();
  options->group_name = own.name;
  options->global_ranks_in_group.assign(own.global_ranks.begin(), own.global_ranks.end());
  return options;
}

c10::intrusive_ptr<c10d::Work> GroupBackend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  const CallChecks checks(who(), "send", size_);
  return send_async({checks.only(tensors, "tensors", kOneTensor), destination, tag});
}

c10::intrusive_ptr<c10d::Work> GroupBackend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  const CallChecks checks(who(), "recv", size_);
  checks.check_peer(source, "source");  // not kAnySource
  return receive_async({checks.only(tensors, "tensors", kOneTensor), source, tag});
}

c10::intrusive_ptr<c10d::Work> GroupBackend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  const CallChecks checks(who(), "recv", size_);
  return receive_async({checks.only(tensors, "tensors", kOneTensor), kAnySource, tag});
}

void GroupBackend::check_send(const Message& message) const {
  const CallChecks checks(who(), "send", size_);
  checks.check_readable(message.tensor, "tensor");
  checks.check_peer(message.peer, "destination");
  checks.check_tag(message.tag);
  check_limits("send", message);
}

void GroupBackend::check_receive(const Message& message) const {
  const CallChecks checks(who(), "recv", size_);
  checks.check_writable(message.tensor, "tensor");
  if (message.peer != kAnySource) checks.check_peer(message.peer, "source");
  checks.check_tag(message.tag);
  check_limits("recv", message);
}

void GroupBackend::check_limits(const char* /*operation*/, const Message& /*message*/) const {}

void GroupBackend::send_blocking(const Message& message) {
  send_async(message)->wait();
}

int GroupBackend::receive_blocking(const Message& message) {
  const auto work = receive_async(message);
  work->wait();
  return work->sourceRank();
}

c10::intrusive_ptr<c10d::Backend> GroupBackend::split(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& opts) {
  const CallChecks checks(who(), "split", size_);
  Membership part;
  part.rank = -1;
  part.size = static_cast<int>(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size_) checks.reject("{} is not a rank of this group of {}", ranks[i], size_);
    if (ranks[i] == rank_) part.rank = static_cast<int>(i);
    part.global_ranks.push_back(global_rank(ranks[i]));
  }
  if (part.rank < 0) checks.reject("this rank is not among the ranks {{{}}}", fmt::join(ranks, ","));
  const std::string& name = membership().name;
  const std::string members = fmt::format("{}/split{{{}}}", name, fmt::join(ranks, ","));
  // LibTorch gives every part of a split the options of the whole group, name included.
  const bool has_name = opts != nullptr && !opts->group_name.empty() && opts->group_name != name;
  part.name = has_name ? opts->group_name : members;
  part.timeout = opts == nullptr ? timeout_.load() : opts->timeout;
  {
    // Counts splits with exactly these members. All members have the same count without communication.
    MutexLock lock(mutex_);
    part.store = std::make_shared<comm::PrefixStore>(fmt::format("{}#{}", members, ++splits_[members]), store_);
  }
  part.store = watched(std::move(part.store), ranks);
  return create_part(std::move(part));
}

// Every member counts the twins of its group, so all have the same number without communication.
c10::intrusive_ptr<c10d::Backend> GroupBackend::make_twin(const std::string& name) {
  // The twin would be broken too. Members that are gone would be waited for in vain.
  if (const Status broken = health(); !broken.ok()) {
    throw_status(broken, fmt::format("{}, making group '{}'", who(), name));
  }
  Membership twin = membership();
  {
    MutexLock lock(mutex_);
    twin.store = std::make_shared<comm::PrefixStore>(fmt::format("{}/twin#{}", twin.name, ++twins_made_), store_);
  }
  twin.name = name;
  twin.timeout = timeout_.load();
  auto made = create_twin(std::move(twin));
  MutexLock lock(mutex_);
  std::erase_if(twins_, [](const auto& one) { return one.expired(); });
  twins_.emplace_back(made);
  return made;
}

std::vector<c10::intrusive_ptr<c10d::Backend>> GroupBackend::twins() const {
  std::vector<c10::intrusive_ptr<c10d::Backend>> living;
  MutexLock lock(mutex_);
  for (const auto& one : twins_) {
    if (auto twin = one.lock()) living.push_back(std::move(twin));
  }
  return living;
}

c10::intrusive_ptr<c10d::Backend> GroupBackend::create_twin(Membership twin) const {
  return create_part(std::move(twin));
}

c10d::ErrorType GroupBackend::getError() {
  switch (health().code()) {
    case ErrorCode::kOk: return c10d::ErrorType::SUCCESS;
    case ErrorCode::kTimeout: return c10d::ErrorType::TIMEOUT;
    case ErrorCode::kPeerFailed:
    case ErrorCode::kAborted: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

}  // namespace lockstep
