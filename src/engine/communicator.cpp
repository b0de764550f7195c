#include "lockstep/engine/communicator.h"

#include <fmt/format.h>

#include "engine/core/machines.h"
#include "engine/hierarchical/wide_group.h"
#include "engine/local/group.h"
#include "store/membership/delete_by_last_rank.h"

namespace lockstep::comm {
namespace {

Status check_peer(const char* what, int rank, int world, bool any) {
  if ((rank >= 0 && rank < world) || (any && rank == kAnySource)) return {};
  return {ErrorCode::kInvalidArgument, fmt::format("{}: {} is not a rank of this group of {}", what, rank, world)};
}

Status check_tag(const char* what, int tag) {
  if (tag >= 0) return {};
  return {ErrorCode::kInvalidArgument, fmt::format("{}: tags must not be negative, got {}", what, tag)};
}

Result<Transfer> make_transfer(const Send& args, int world) {
  LOCKSTEP_RETURN_IF_ERROR(check_peer("send", args.destination, world, /*any=*/false));
  LOCKSTEP_RETURN_IF_ERROR(check_tag("send", args.tag));
  Transfer transfer;
  transfer.is_send = true;
  transfer.peer = args.destination;
  transfer.tag = args.tag;
  transfer.source = args.data;
  return transfer;
}

Result<Transfer> make_transfer(const Receive& args, int world) {
  LOCKSTEP_RETURN_IF_ERROR(check_peer("recv", args.source, world, /*any=*/true));
  LOCKSTEP_RETURN_IF_ERROR(check_tag("recv", args.tag));
  Transfer transfer;
  transfer.peer = args.source;
  transfer.tag = args.tag;
  transfer.target = args.data;
  return transfer;
}

// What this rank needs before it can meet the others.
Result<Member> prepare(CommunicatorOptions& options) {
  if (!options.arena) {
    LOCKSTEP_ASSIGN_OR_RETURN(options.arena, SharedArena::create());
  }
  return describe_this_process(options.rank, options.world_size, options.machine);
}

Status refuse_fork(const std::string& whose) {
  return {
      ErrorCode::kUnsupported,
      fmt::format("this process is a fork of {}; only that process can use its groups. What is to run beside it must "
                  "be forked before the group is made, or replace its program (exec); a fork may join a world of "
                  "its own",
                  whose)};
}

// Before a caller learns that a group has broken, the process's other groups do.
template <typename Answer>
Answer tell_others(Drivable& group, Answer answer) {
  if (!answer.ok()) GroupRegistry::of_process().tell_others(group);
  return answer;
}

// This rank has joined. Only a group that has failed to form leaves something in the store.
void clear_up(Store& store, const CommunicatorOptions& options, std::vector<std::string> keys) {
  for (std::string& key : roll_keys(options.name)) keys.push_back(std::move(key));
  delete_by_last_rank(store, fmt::format("lockstep/{}/met", options.name), options.world_size, keys);
}

}  // namespace

Operation::Operation(std::shared_ptr<State> state) : state_(std::move(state)) {}

Status Operation::wait(Deadline deadline) {
  if (!state_) return {ErrorCode::kInvalidArgument, "wait() on an Operation that was never started"};
  if (!state_->origin.is_this_process()) return refuse_fork("the one that has started this operation");
  if (state_->wide) return tell_others(*state_->wide, state_->wide->wait(*state_, deadline));
  return tell_others(*state_->group, state_->group->wait(*state_, deadline));
}

bool Operation::is_completed() {
  if (!state_ || !state_->origin.is_this_process()) return true;
  return state_->wide ? state_->wide->poll(*state_) : state_->group->poll(*state_);
}
bool Operation::is_over() const {
  if (!state_) return true;
  const std::atomic<bool>& over = state_->wide_collective ? state_->wide_collective->over : state_->over;
  return over.load(std::memory_order_acquire);
}
int Operation::source() const {
  return state_ && state_->over ? state_->transfer.from : -1;
}
std::uint64_t Operation::sequence() const {
  if (state_ && state_->wide_collective) return state_->wide_collective->sequence;
  return state_ && state_->collective ? state_->collective->sequence() : 0;
}

Result<std::unique_ptr<Communicator>> Communicator::create(const std::shared_ptr<Store>& store,
                                                           const CommunicatorOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("group '{}': rank {} is not in a world of {}", options.name,
                                                           options.rank, options.world_size));
  }
  if (!options.world_ranks.empty() && options.world_ranks.size() != static_cast<std::size_t>(options.world_size)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("group '{}': expected a rank of the world for each of {} ranks, got {}", options.name,
                              options.world_size, options.world_ranks.size()));
  }
  auto made = meet(store, options);
  // Whoever goes because of that leaves word.
  if (!made.ok()) GroupRegistry::of_process().tell({made.status(), {}}, nullptr);
  return made;
}

// `own` is as it must be.
Result<std::unique_ptr<Communicator>> Communicator::meet(const std::shared_ptr<Store>& store, CommunicatorOptions own) {
  const Roster roster(own.world_ranks);
  auto me = prepare(own);
  if (!me.ok()) {
    const Status why =
        me.status().with_context(fmt::format("{} cannot join group '{}'", roster.name(own.rank), own.name));
    if (own.world_size > 1) refuse_roll(*store, own.name, why);
    return why;
  }
  if (own.world_size > 1) {
    auto members = call_roll(*store, {own.name, roster}, me.value(), Deadline::after(own.timeout));
    if (!members.ok())
      return members.status().with_context(fmt::format("{} cannot join group '{}'", roster.name(own.rank), own.name));
    MachineLayout layout(members.value());
    if (layout.machines() > 1) {
      LOCKSTEP_ASSIGN_OR_RETURN(auto wide, WideGroup::create(store, own, std::move(layout)));
      GroupRegistry::of_process().add(wide);
      clear_up(*store, own, wide->meeting_keys());
      return std::unique_ptr<Communicator>(new Communicator(nullptr, std::move(wide)));
    }
  }
  HandOverOptions hand_over_options;
  hand_over_options.rank = own.rank;
  hand_over_options.world_size = own.world_size;
  hand_over_options.name = own.name;
  hand_over_options.world_ranks = own.world_ranks;
  hand_over_options.control_bytes = ControlLayout(own.world_size).total();
  auto parts = hand_over(*store, *own.arena, hand_over_options, Deadline::after(own.timeout));
  if (!parts.ok())
    return parts.status().with_context(fmt::format("{} cannot join group '{}'", roster.name(own.rank), own.name));
  if (own.world_size > 1) clear_up(*store, own, {hand_over_key(own.name)});
  const std::shared_ptr<Impl> impl(new Impl(own.rank, own, std::move(parts).value()), LeakInForks());
  GroupRegistry::of_process().add(impl);
  return std::unique_ptr<Communicator>(new Communicator(impl, nullptr));
}

Communicator::Communicator(std::shared_ptr<Impl> impl, std::shared_ptr<WideGroup> wide)
    : impl_(std::move(impl)), wide_(std::move(wide)) {}
Communicator::~Communicator() {
  if (!origin_.is_this_process()) return;
  wide_ ? wide_->close() : impl_->close();
}

Status Communicator::check_process() const {
  if (origin_.is_this_process()) return {};
  return refuse_fork(fmt::format("rank {} of group '{}'", rank(), name()));
}

int Communicator::rank() const {
  return wide_ ? wide_->rank() : impl_->memory().rank();
}
int Communicator::world_size() const {
  return wide_ ? wide_->world_size() : impl_->memory().world();
}
const std::string& Communicator::name() const {
  return wide_ ? wide_->name() : impl_->memory().name();
}
SharedArena& Communicator::arena() const {
  return wide_ ? wide_->arena() : impl_->memory().arena();
}

Drivable& Communicator::group() const {
  return wide_ ? static_cast<Drivable&>(*wide_) : *impl_;
}
Status Communicator::run_request(const RequestView& request, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  return tell_others(group(), wide_ ? wide_->run(request.copy(), deadline) : impl_->run(request, deadline));
}
Result<Operation> Communicator::start_request(const RequestView& request, KeepAlive keep,
                                              std::optional<Deadline> admission) {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  return tell_others(group(), wide_ ? wide_->start(request.copy(), std::move(keep), admission)
                                    : impl_->start(request.copy(), std::move(keep), admission));
}

Status Communicator::run(const AllReduce& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}
Status Communicator::run(const Reduce& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}
Status Communicator::run(const Broadcast& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}
Status Communicator::run(const AllGather& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}
Status Communicator::run(const Gather& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}
Status Communicator::run(const Scatter& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}
Status Communicator::run(const ReduceScatter& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}
Status Communicator::run(const AllToAll& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}
Status Communicator::run(const Barrier& args, Deadline deadline) {
  return run_request(view_of(args, rank()), deadline);
}

Status Communicator::run(const Send& args, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  LOCKSTEP_ASSIGN_OR_RETURN(const Transfer transfer, make_transfer(args, world_size()));
  return tell_others(group(), wide_ ? wide_->run(transfer, deadline) : impl_->run(transfer, deadline));
}
Status Communicator::run(const Receive& args, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  LOCKSTEP_ASSIGN_OR_RETURN(const Transfer transfer, make_transfer(args, world_size()));
  return tell_others(group(), wide_ ? wide_->run(transfer, deadline) : impl_->run(transfer, deadline));
}

Result<Operation> Communicator::start(const AllReduce& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}
Result<Operation> Communicator::start(const Reduce& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}
Result<Operation> Communicator::start(const Broadcast& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}
Result<Operation> Communicator::start(const AllGather& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}
Result<Operation> Communicator::start(const Gather& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}
Result<Operation> Communicator::start(const Scatter& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}
Result<Operation> Communicator::start(const ReduceScatter& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}
Result<Operation> Communicator::start(const AllToAll& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}
Result<Operation> Communicator::start(const Barrier& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}

Result<Operation> Communicator::start(const Refusal& args, KeepAlive keep, std::optional<Deadline> admission) {
  return start_request(view_of(args, rank()), std::move(keep), admission);
}

Result<Operation> Communicator::start(const Send& args, KeepAlive keep, std::optional<Deadline> /*admission*/) {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  LOCKSTEP_ASSIGN_OR_RETURN(const Transfer transfer, make_transfer(args, world_size()));
  return tell_others(group(),
                     wide_ ? wide_->start(transfer, std::move(keep)) : impl_->start(transfer, std::move(keep)));
}
Result<Operation> Communicator::start(const Receive& args, KeepAlive keep, std::optional<Deadline> /*admission*/) {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  LOCKSTEP_ASSIGN_OR_RETURN(const Transfer transfer, make_transfer(args, world_size()));
  return tell_others(group(),
                     wide_ ? wide_->start(transfer, std::move(keep)) : impl_->start(transfer, std::move(keep)));
}

void Communicator::poke() {
  if (!origin_.is_this_process()) return;
  wide_ ? wide_->poke() : impl_->poke();
}
void Communicator::abort(const std::string& reason) {
  if (!origin_.is_this_process()) return;
  wide_ ? wide_->abort(reason) : impl_->abort(reason);
  GroupRegistry::of_process().tell_others(group());
}
Status Communicator::health() const {
  LOCKSTEP_RETURN_IF_ERROR(check_process());
  return tell_others(group(), wide_ ? wide_->health() : impl_->health());
}
std::uint64_t Communicator::sequence() const {
  return wide_ ? wide_->sequence() : impl_->sequence();
}
std::vector<int> Communicator::absent(std::uint64_t sequence) const {
  if (!origin_.is_this_process()) return {};
  return wide_ ? wide_->absent(sequence) : impl_->absent(sequence);
}

}  // namespace lockstep::comm
