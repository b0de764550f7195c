#include "lockstep/engine/communicator.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/host.h"
#include "engine/core/failure.h"
#include "engine/core/group_registry.h"
#include "engine/core/topology.h"
#include "engine/hierarchical/hierarchical_group.h"
#include "engine/local/local_group.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "store/membership/delete_by_last_rank.h"
#include "store/membership/exchange_members.h"

namespace lockstep::comm {
namespace {

constexpr int kLargestGroup = 65536;  // Post::root has 16 bits

Status check_peer(const char* what, int rank, int group_size, bool any) {
  if ((rank >= 0 && rank < group_size) || (any && rank == kAnySource)) return {};
  return {ErrorCode::kInvalidArgument, fmt::format("{}: {} is not a rank of this group of {}", what, rank, group_size)};
}

Status check_tag(const char* what, int tag) {
  if (tag >= 0) return {};
  return {ErrorCode::kInvalidArgument, fmt::format("{}: tags must not be negative, got {}", what, tag)};
}

Result<Transfer> make_transfer(const Send& args, int group_size) {
  LOCKSTEP_RETURN_IF_ERROR(check_peer("send", args.destination, group_size, /*any=*/false));
  LOCKSTEP_RETURN_IF_ERROR(check_tag("send", args.tag));
  Transfer transfer;
  transfer.is_send = true;
  transfer.peer = args.destination;
  transfer.tag = args.tag;
  transfer.source = args.data;
  transfer.place = current_call_place();
  return transfer;
}

Result<Transfer> make_transfer(const Receive& args, int group_size) {
  LOCKSTEP_RETURN_IF_ERROR(check_peer("recv", args.source, group_size, /*any=*/true));
  LOCKSTEP_RETURN_IF_ERROR(check_tag("recv", args.tag));
  Transfer transfer;
  transfer.peer = args.source;
  transfer.tag = args.tag;
  transfer.target = args.data;
  transfer.place = current_call_place();
  return transfer;
}

Status refuse_fork(const std::string& whose) {
  return {
      ErrorCode::kUnsupported,
      fmt::format("this process is a fork of {}; only that process can use its groups. What is to run beside it must "
                  "be forked before the group is made, or replace its program (exec); a fork may join a world of "
                  "its own",
                  whose)};
}

// What this thread asks for now.
template <typename Args>
RequestView make_view(const Args& args, int rank) {
  RequestView request = view_of(args, rank);
  request.place = current_call_place();
  return request;
}

// The other groups of the process learn of a broken group before the caller does.
template <typename Answer>
Answer tell_other_groups(Group& group, Answer answer) {
  if (!answer.ok()) GroupRegistry::of_process().tell_other_groups(group);
  return answer;
}

std::string prefix_of(const CommunicatorOptions& options) {
  return "lockstep/" + options.name;
}

// Deletes what the group has left in the store once all ranks have joined. If the group fails to form, its keys stay.
void clear_store(Store& store, const CommunicatorOptions& options, std::vector<std::string> keys) {
  if (options.members.empty()) {
    for (std::string& key : membership_keys(prefix_of(options))) keys.push_back(std::move(key));
  }
  delete_by_last_rank(store, prefix_of(options) + "/met", options.group_size, keys);
}

Result<std::shared_ptr<Group>> join_locally(const std::shared_ptr<Store>& store, const CommunicatorOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto group, LocalGroup::create(*store, options, Deadline::after(options.timeout)));
  if (options.group_size > 1) clear_store(*store, options, {hand_over_key(options.name)});
  return std::shared_ptr<Group>(group);
}

Result<std::vector<Member>> find_members(Store& store, const CommunicatorOptions& options) {
  if (!options.members.empty()) return options.members;
  return exchange_members(store, prefix_of(options), Roster(options.world_ranks),
                          describe_this_process(options.rank, options.group_size, options.machine),
                          Deadline::after(options.timeout));
}

// Rank 0 of the world logs how its ranks reach one another, unless it has just logged the same.
void say_reach(const Topology& topology, const CommunicatorOptions& options) {
  const Roster roster(options.world_ranks);
  if (options.rank != 0 || roster.number(0) != 0 || *roster.suffix() != 0) return;
  const Reach reach = describe_reach(topology, roster);
  static Mutex mutex;
  static std::string& said = *new std::string;
  MutexLock lock(mutex);
  if (said == reach.text) return;
  said = reach.text;
  if (reach.reason.empty()) return log::info(reach.text);
  log::warning(fmt::format("{}. {}", reach.text, reach.reason));
}

// Once every rank knows all members, all ranks pick the same engine.
Result<std::shared_ptr<Group>> join(const std::shared_ptr<Store>& store, const CommunicatorOptions& options) {
  if (options.group_size == 1) return join_locally(store, options);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Member> members, find_members(*store, options));
  Topology topology(members);
  say_reach(topology, options);
  if (topology.machines() == 1) return join_locally(store, options);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto group, HierarchicalGroup::create(store, options, std::move(topology)));
  clear_store(*store, options, group->meeting_keys());
  return std::shared_ptr<Group>(group);
}

Status cannot_join(const CommunicatorOptions& options, const Status& why) {
  const std::string who = Roster(options.world_ranks).name(options.rank);
  return why.with_context(fmt::format("{} cannot join group '{}'", who, options.name));
}

Status check(const CommunicatorOptions& options) {
  if (options.group_size < 1 || options.rank < 0 || options.rank >= options.group_size) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("group '{}': rank {} is not in a group of {}", options.name, options.rank, options.group_size)};
  }
  if (options.group_size > kLargestGroup) {
    return {ErrorCode::kUnsupported, fmt::format("group '{}': a group has at most {} ranks, got {}", options.name,
                                                 kLargestGroup, options.group_size)};
  }
  if (!options.world_ranks.empty() && options.world_ranks.size() != static_cast<std::size_t>(options.group_size)) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("group '{}': expected a rank of the world for each of {} ranks, got {}", options.name,
                        options.group_size, options.world_ranks.size())};
  }
  if (!options.members.empty() && options.members.size() != static_cast<std::size_t>(options.group_size)) {
    return {ErrorCode::kInvalidArgument, fmt::format("group '{}': expected the records of {} ranks, got {}",
                                                     options.name, options.group_size, options.members.size())};
  }
  return {};
}

}  // namespace

Operation::Operation(std::shared_ptr<State> state) : state_(std::move(state)) {}

Status Operation::wait(Deadline deadline) {
  if (!state_) return {ErrorCode::kInvalidArgument, "wait() on an Operation that was never started"};
  if (!state_->origin.is_this_process()) return refuse_fork("the one that has started this operation");
  return tell_other_groups(*state_->group, state_->group->wait(*state_, deadline));
}

bool Operation::is_completed() {
  return !state_ || !state_->origin.is_this_process() || state_->group->test(*state_);
}
bool Operation::is_over() const {
  return !state_ || state_->is_over();
}
int Operation::source() const {
  return state_ && state_->over ? state_->transfer.from : -1;
}
std::uint64_t Operation::sequence() const {
  return state_ ? state_->sequence() : 0;
}

Result<std::unique_ptr<Communicator>> Communicator::create(const std::shared_ptr<Store>& store,
                                                           const CommunicatorOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(check(options));
  auto joined = join(store, options);
  if (!joined.ok()) {
    const Status why = cannot_join(options, joined.status());
    // If this rank leaves its other groups because of this error, their members learn the cause.
    GroupRegistry::of_process().tell({why, {}}, nullptr);
    return why;
  }
  GroupRegistry::of_process().add(joined.value());
  return std::unique_ptr<Communicator>(new Communicator(std::move(joined).value()));
}

Communicator::Communicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}
Communicator::~Communicator() {
  if (origin_.is_this_process()) group_->close();
}

Status Communicator::check_process() const {
  if (origin_.is_this_process()) return {};
  return refuse_fork(fmt::format("rank {} of group '{}'", rank(), name()));
}

int Communicator::rank() const {
  return group_->rank();
}
int Communicator::group_size() const {
  return group_->group_size();
}
const std::string& Communicator::name() const {
  return group_->name();
}
SharedArena& Communicator::arena() const {
  return group_->arena();
}
std::uint64_t Communicator::family() const {
  return group_->family();
}
bool Communicator::shares_memory() const {
  return group_->shares_memory();
}
std::uint64_t Communicator::identity() const {
  return group_->identity();
}

template <typename Args>
Status Communicator::run(const Args& args, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  if constexpr (requires { make_transfer(args, group_size()); }) {
    LOCKSTEP_ASSIGN_OR_RETURN(Transfer transfer, make_transfer(args, group_size()));
    return tell_other_groups(*group_, group_->run(std::move(transfer), deadline));
  } else {
    const RequestView request = make_view(args, rank());
    LOCKSTEP_RETURN_IF_ERROR(validate(request, rank(), group_size()));
    return tell_other_groups(*group_, group_->run(request, deadline));
  }
}

template <typename Args>
Result<Operation> Communicator::start(const Args& args, KeepAlive keep) {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  if constexpr (requires { make_transfer(args, group_size()); }) {
    LOCKSTEP_ASSIGN_OR_RETURN(Transfer transfer, make_transfer(args, group_size()));
    LOCKSTEP_ASSIGN_OR_RETURN(auto state,
                              tell_other_groups(*group_, group_->start(std::move(transfer), std::move(keep))));
    return Operation(std::move(state));
  } else {
    const RequestView request = make_view(args, rank());
    LOCKSTEP_RETURN_IF_ERROR(validate(request, rank(), group_size()));
    LOCKSTEP_ASSIGN_OR_RETURN(auto state, tell_other_groups(*group_, group_->start(request.copy(), std::move(keep))));
    return Operation(std::move(state));
  }
}

#define LOCKSTEP_INSTANTIATE(Args)                          \
  template Status Communicator::run(const Args&, Deadline); \
  template Result<Operation> Communicator::start(const Args&, KeepAlive);
LOCKSTEP_INSTANTIATE(AllReduce)
LOCKSTEP_INSTANTIATE(Reduce)
LOCKSTEP_INSTANTIATE(Broadcast)
LOCKSTEP_INSTANTIATE(AllGather)
LOCKSTEP_INSTANTIATE(Gather)
LOCKSTEP_INSTANTIATE(Scatter)
LOCKSTEP_INSTANTIATE(ReduceScatter)
LOCKSTEP_INSTANTIATE(AllToAll)
LOCKSTEP_INSTANTIATE(Barrier)
LOCKSTEP_INSTANTIATE(Send)
LOCKSTEP_INSTANTIATE(Receive)
template Result<Operation> Communicator::start(const Refusal&, KeepAlive);
#undef LOCKSTEP_INSTANTIATE

void Communicator::progress() {
  if (origin_.is_this_process()) group_->progress();
}
void Communicator::abort(const std::string& reason) {
  if (!origin_.is_this_process()) return;
  group_->abort(reason);
  GroupRegistry::of_process().tell_other_groups(*group_);
}
void Communicator::will_be_formed_anew() {
  if (!origin_.is_this_process()) return;
  const std::string who = fmt::format("{} (pid {} on {})", group_->roster().name(rank()), getpid(), host_name());
  group_->hear({{ErrorCode::kAborted, fmt::format("{} on {}; call it here too", kFormedAnew, who)}, {}});
}
Status Communicator::health() const {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  return tell_other_groups(*group_, group_->health());
}
bool Communicator::any_broken() {
  return GroupRegistry::of_process().any_broken();
}
std::uint64_t Communicator::sequence() const {
  return group_->sequence();
}
Status Communicator::check_present(const std::vector<int>& ranks) const {
  return origin_.is_this_process() ? group_->check_present(ranks) : Status();
}
std::vector<int> Communicator::absent(std::uint64_t sequence) const {
  return origin_.is_this_process() ? group_->absent(sequence) : std::vector<int>();
}

}  // namespace lockstep::comm
