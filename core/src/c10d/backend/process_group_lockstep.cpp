#include "lockstep/c10d/process_group_lockstep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <utility>

#include "base/call_place.h"
#include "c10d/backend/collective_call.h"
#include "c10d/backend/group_core.h"
#include "c10d/backend/group_errors.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/store/prefix_store.h"
#include "shm/shared_block.h"
#include "store/membership/delete_by_last_rank.h"
#include "store/membership/watched_store.h"

namespace lockstep {
namespace {

void check_options(const std::shared_ptr<comm::Store>& store, const ProcessGroupLockstepOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("group '{}': rank {} is not in 0 to {}", options.name,
                                                                 options.rank, options.world_size - 1));
  }
  if (!options.global_ranks.empty() && options.global_ranks.size() != static_cast<std::size_t>(options.world_size)) {
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("group '{}': {} global ranks given for a group of {}", options.name,
                                    options.global_ranks.size(), options.world_size));
  }
  if (store == nullptr) {
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        fmt::format("group '{}': no store to find the others", options.name));
  }
}

// Null if the system refuses the memory. Then the engine asks for it once more, and tells the other ranks, which would
// wait for this one, if that fails too.
std::shared_ptr<comm::SharedArena> find_arena() {
  try {
    return process_arena();
  } catch (const std::exception&) {
    return nullptr;
  }
}

// A view of `store`: a wait for a key fails with the error that `look` finds in the group. After this rank has left the
// group, nothing is looked at.
template <typename Look>
std::shared_ptr<comm::Store> watch_group(std::shared_ptr<comm::Store> store, const std::shared_ptr<GroupCore>& core,
                                         Look look) {
  return comm::make_watched_store(std::move(store), [core = std::weak_ptr(core), look = std::move(look)] {
    const auto group = core.lock();
    const auto communicator = group == nullptr || !group->is_this_process() ? nullptr : group->communicator();
    return communicator == nullptr ? Status() : look(*communicator);
  });
}

// Once a group is broken, collectives of the others may never end: a rank that stands still does so in all of them.
void leave(GroupCore& core) {
  core.retire(comm::Communicator::any_broken() ? std::chrono::milliseconds(0) : WorksUnderWay::kPartingTime);
  core.leave();
}

}  // namespace

std::shared_ptr<GroupCore> ProcessGroupLockstep::join(const std::shared_ptr<comm::Store>& store,
                                                      const ProcessGroupLockstepOptions& options) {
  comm::CommunicatorOptions communicator_options;
  communicator_options.rank = options.rank;
  communicator_options.group_size = options.world_size;
  communicator_options.name = options.name;
  communicator_options.timeout = options.timeout;
  communicator_options.arena = find_arena();
  communicator_options.world_ranks = options.global_ranks;
  communicator_options.members = options.members;
  communicator_options.family = options.family;
  auto communicator = comm::Communicator::create(store, communicator_options);
  const std::string who = describe_member(options.rank, options.name, options.global_ranks);
  if (!communicator.ok())
    throw_status(communicator.status(), who + ", joining the group" + describe_place(current_call_place()));
  auto core = std::make_shared<GroupCore>(std::move(communicator).value(), options.world_size,
                                          GroupCore::Names{who, options.profiled_as});
  core->record_as(flight::add_group(options.name, "lockstep", options.rank, options.world_size, options.global_ranks,
                                    core->communicator()->identity()));
  return core;
}

c10::intrusive_ptr<ProcessGroupLockstep> ProcessGroupLockstep::create(std::shared_ptr<comm::Store> store,
                                                                      const ProcessGroupLockstepOptions& options) {
  check_options(store, options);
  std::shared_ptr<GroupCore> core;
  if (options.enable_reconfigure) {
    const GroupCore::Names names{describe_member(options.rank, options.name, options.global_ranks),
                                 options.profiled_as};
    core = std::make_shared<GroupCore>(
        nullptr, options.world_size, names,
        Status(ErrorCode::kAborted, "the group is not made yet (enable_reconfigure): call reconfigure() first"));
  } else {
    core = join(store, options);
  }
  Membership membership{std::move(store),   options.name,         options.rank,
                        options.world_size, options.global_ranks, options.timeout};
  // Not reclaim(), which expects an object with a reference count above zero.
  return c10::intrusive_ptr<ProcessGroupLockstep>(
      std::unique_ptr<ProcessGroupLockstep>(new ProcessGroupLockstep(std::move(membership), std::move(core), options)));
}

ProcessGroupLockstep::ProcessGroupLockstep(Membership membership, std::shared_ptr<GroupCore> core,
                                           const ProcessGroupLockstepOptions& options)
    : GroupBackend(std::move(membership)),
      profiled_as_(options.profiled_as),
      enable_reconfigure_(options.enable_reconfigure) {
  renew_core(std::move(core));
}

ProcessGroupLockstep::~ProcessGroupLockstep() {
  leave(*core());
}

void ProcessGroupLockstep::renew_core(std::shared_ptr<GroupCore> core) {
  MutexLock lock(place_mutex_);
  core_ = &cores_.emplace_back(std::move(core));
}

const std::string& ProcessGroupLockstep::who() const {
  return core()->who();
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::barrier(const c10d::BarrierOptions& opts) {
  CollectiveCall call(core(), "barrier",
                      {c10d::OpType::BARRIER, blocking(opts.asyncOp), timeout_or_default(opts.timeout)});
  call.follow_earlier_works();
  call.submit(comm::Barrier{});
  return call.work({});
}

// Rank 0 names the missing ranks in the words of c10d's monitored barriers, for programs that look for these.
void ProcessGroupLockstep::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const auto timeout = opts.timeout == c10d::kUnsetTimeout ? timeout_or_default(opts.timeout) : opts.timeout;
  CollectiveCall call(core(), "monitored_barrier", {c10d::OpType::BARRIER, Blocking::kYes, timeout});
  try {
    call.follow_earlier_works();
    call.submit(comm::Barrier{});
    call.work({});
  } catch (const BackendError& error) {
    const auto communicator = core()->communicator();
    std::vector<int> absent;
    if (communicator != nullptr) absent = communicator->absent(communicator->sequence());
    for (int& rank : absent) rank = global_rank(rank);
    std::string text;
    if (rank_ != 0) {
      text = fmt::format(
          "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank {}",
          global_rank(rank_), global_rank(0));
    } else if (!absent.empty()) {
      text = absent.size() > 1 && wait_all_ranks
                 ? fmt::format("Ranks {} failed to pass monitoredBarrier", fmt::join(absent, ", "))
                 : fmt::format("Rank {} failed to pass monitoredBarrier", absent.front());
      if (error.code() == ErrorCode::kTimeout) {
        text =
            fmt::format("Rank {} timed out in monitoredBarrier after {} ms: {}", global_rank(0), timeout.count(), text);
      }
    }
    if (text.empty()) throw;
    throw BackendError(error.code(), fmt::format("{}. {}", text, error.what_without_backtrace()));
  }
}

std::uint64_t ProcessGroupLockstep::getSequenceNumberForGroup() {
  const auto communicator = core()->communicator();
  return communicator == nullptr ? 0 : communicator->sequence();
}

ProcessGroupLockstepOptions ProcessGroupLockstep::options_of(const Membership& membership) {
  ProcessGroupLockstepOptions options;
  options.rank = membership.rank;
  options.world_size = membership.size;
  options.name = membership.name;
  options.timeout = membership.timeout;
  options.global_ranks = membership.global_ranks;
  return options;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupLockstep::create_part(Membership part) const {
  return create(part.store, options_of(part));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupLockstep::create_twin(Membership twin) const {
  ProcessGroupLockstepOptions options = options_of(twin);
  options.family = member_communicator()->family();
  return create(watched_by_all(std::move(twin.store)), options);
}

std::shared_ptr<comm::Communicator> ProcessGroupLockstep::member_communicator() const {
  auto communicator = core()->communicator();
  if (communicator == nullptr) throw BackendError(ErrorCode::kAborted, who() + ": this rank has left the group");
  return communicator;
}

// For what all members make together: a member that has seen this group break takes no part. That it then leaves is not
// the cause.
std::shared_ptr<comm::Store> ProcessGroupLockstep::watched_by_all(std::shared_ptr<comm::Store> store) const {
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  std::iota(ranks.begin(), ranks.end(), 0);
  return watch_group(std::move(store), core(), [ranks = std::move(ranks)](const comm::Communicator& group) {
    const Status present = group.check_present(ranks);
    const Status health = group.health();
    return health.ok() ? present : health;
  });
}

bool ProcessGroupLockstep::shares_memory() const {
  return member_communicator()->shares_memory();
}

std::shared_ptr<comm::SharedBlock> ProcessGroupLockstep::share_block(std::size_t bytes) {
  const std::string context = fmt::format("{}, sharing {} bytes", who(), bytes);
  if (!shares_memory()) {
    throw_status({ErrorCode::kUnsupported, "the ranks are on several machines; expected all of them on one"}, context);
  }
  if (const Status broken = health(); !broken.ok()) throw_status(broken, context);
  const Membership& mine = membership();
  const auto place =
      watched_by_all(std::make_shared<comm::PrefixStore>(fmt::format("{}/block#{}", mine.name, ++blocks_), store()));
  comm::HandOverOptions options;
  options.rank = rank_;
  options.group_size = size_;
  options.name = mine.name;
  options.roster = comm::Roster(mine.global_ranks);
  options.control_bytes = bytes;
  auto block = comm::SharedBlock::create(*place, *process_arena(), options, Deadline::after(mine.timeout));
  if (!block.ok()) throw_status(block.status(), context);
  if (size_ > 1) comm::delete_by_last_rank(*place, "met", size_, std::vector{comm::hand_over_key(mine.name)});
  return std::move(block).value();
}

void ProcessGroupLockstep::abort() {
  abort(aborted_by(who()));
  if (!enable_reconfigure_) return;
  core()->retire(std::chrono::milliseconds(0),
                 {ErrorCode::kAborted, aborted_by(who()) + "; reconfigure() makes the group again"},
                 GroupCore::Tell::kNothing);
}

void ProcessGroupLockstep::abort(const std::string& reason) {
  if (!core()->is_this_process()) return;
  if (const auto communicator = core()->communicator()) communicator->abort(reason);
}

void ProcessGroupLockstep::retire(std::chrono::milliseconds parting_time, const Status& why) {
  core()->retire(parting_time, why);
}

void ProcessGroupLockstep::refuse(const std::string& reason) {
  // A broken group need not be told.
  const auto communicator = core()->communicator();
  if (communicator == nullptr) return;
  Result<comm::Operation> refusal = communicator->start(comm::Refusal{reason});
  if (refusal.ok()) core()->keep_refusal(std::move(refusal).value());
}

void ProcessGroupLockstep::shutdown() {
  leave(*core());
}

std::shared_ptr<comm::Store> ProcessGroupLockstep::watched(std::shared_ptr<comm::Store> store,
                                                           std::vector<int> ranks) const {
  return watch_group(std::move(store), core(), [ranks = std::move(ranks)](const comm::Communicator& group) {
    return group.check_present(ranks);
  });
}

Status ProcessGroupLockstep::replaced() const {
  return core()->reason_left();
}

Status ProcessGroupLockstep::health() const {
  if (!core()->is_this_process()) return fork_of(who());
  const auto communicator = core()->communicator();
  return communicator == nullptr ? Status() : communicator->health();
}

}  // namespace lockstep
