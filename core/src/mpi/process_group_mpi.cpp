// Making and leaving an MPI group, its barriers and messages, and the library's entry.
#include "mpi/process_group_mpi.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "c10d/backend/group_errors.h"
#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/errors.h"
#include "mpi/mpi_runtime.h"
#include "store/membership/delete_by_last_rank.h"
#include "store/membership/exchange_members.h"

namespace lockstep {
namespace {

// Checked before this rank joins: an error later might show on the other ranks only as its absence.
void check_usable(MpiRuntime& runtime, const BackendRequest& request) {
  MutexLock lock(runtime.mutex());
  if (runtime.is_usable()) return;
  throw BackendError(ErrorCode::kAborted, fmt::format("backend mpi, group '{}': {}", request.name, kMpiFinalised));
}

void check_place(MpiRuntime& runtime, const BackendRequest& request) {
  if (request.mpi_communicator) return;  // its ranks are these
  const int wanted = request.global_ranks[request.rank];
  const int largest = *std::max_element(request.global_ranks.begin(), request.global_ranks.end());
  if (wanted == runtime.rank() && largest < runtime.size()) return;
  throw ArgumentError(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "backend mpi, group '{}': this process is rank {} of a world of at least {}, but MPI knows it as rank {} "
          "of {}. Start the program with mpirun (or srun with MPI support), and let rank and world size come from "
          "there",
          request.name, wanted, largest + 1, runtime.rank(), runtime.size()));
}

// The largest tag is reserved for monitored_barrier.
int own_tag(const MpiGroup& group) {
  MpiRuntime& runtime = MpiRuntime::of_process();
  MutexLock lock(runtime.mutex());
  void* value = nullptr;
  int found = 0;
  if (runtime.is_usable() && group.communicator() != MPI_COMM_NULL)
    MPI_Comm_get_attr(group.communicator(), MPI_TAG_UB, static_cast<void*>(&value), &found);
  return found != 0 ? *static_cast<int*>(value) : 32767;  // the least that MPI guarantees
}

void start_send(MpiCall& call, const at::Tensor& memory, int destination, int tag) {
  call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
    return MPI_Isend(mpi_address(memory), call.count(memory.numel()), runtime.element_type(memory.element_size()),
                     destination, tag, comm, request);
  });
}

void start_receive(MpiCall& call, const at::Tensor& memory, int source, int tag) {
  call.start([&](MpiRuntime& runtime, MPI_Comm comm, MPI_Request* request) {
    return MPI_Irecv(mpi_address(memory), call.count(memory.numel()), runtime.element_type(memory.element_size()),
                     source, tag, comm, request);
  });
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> ProcessGroupMpi::create(const BackendRequest& request) {
  MpiRuntime& runtime = MpiRuntime::of_process();
  check_usable(runtime, request);
  check_place(runtime, request);
  const std::string who = describe_member(request.rank, request.name, request.global_ranks);
  const std::string joining = who + ", joining the group" + request.places.describe(request.places.current());
  // MPI makes communicators without a deadline: first make sure, with one, that all members are here.
  const std::string members = "members";
  const auto here = comm::exchange_members(*request.store, members, comm::Roster(request.global_ranks),
                                           comm::describe_this_process(request.rank, request.group_size()),
                                           Deadline::after(request.timeout));
  if (!here.ok()) throw_status(here.status(), joining);
  comm::delete_by_last_rank(*request.store, members + "/done", request.group_size(), comm::membership_keys(members));
  if (request.mpi_communicator) {
    const Status kept = runtime.make_groups_of(MPI_Comm_f2c(*request.mpi_communicator));
    if (!kept.ok()) throw_status(kept, joining);
  }
  auto communicator = runtime.make_communicator(request.global_ranks);
  if (!communicator.ok()) throw_status(communicator.status(), joining);
  auto refusals = std::make_unique<Refusals>(request.store, request.rank, request.global_ranks);
  std::shared_ptr<MpiGroup> group(
      new MpiGroup(*communicator, who, request.group_size(), request.places, std::move(refusals)), LeakInForks());
  runtime.enter_group(request.timeout);
  Membership membership{request.store,        request.name,         request.rank,
                        request.group_size(), request.global_ranks, request.timeout};
  return c10::intrusive_ptr<c10d::Backend>::unsafe_steal_from_new(
      new ProcessGroupMpi(std::move(membership), std::move(group)));
}

ProcessGroupMpi::ProcessGroupMpi(Membership membership, std::shared_ptr<MpiGroup> group)
    : GroupBackend(std::move(membership)), group_(std::move(group)) {}

ProcessGroupMpi::~ProcessGroupMpi() {
  group_->leave();
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupMpi::create_part(Membership part) const {
  BackendRequest request{std::move(part.store), std::move(part.name), part.rank, std::move(part.global_ranks), {},
                         part.timeout};
  request.places = group_->places();
  return create(request);
}

void ProcessGroupMpi::abort() {
  group_->break_with(Status(ErrorCode::kAborted, aborted_by(group_->who())));
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::barrier(const c10d::BarrierOptions& opts) {
  return collective("barrier", options(c10d::OpType::BARRIER, opts), [&](MpiCall& call) {
    call.follow_earlier_works();
    call.start([](MpiRuntime&, MPI_Comm comm, MPI_Request* request) { return MPI_Ibarrier(comm, request); });
    return call.work({});
  });
}

void ProcessGroupMpi::check_limits(const char* operation, const Message& message) const {
  const CallChecks checks(who(), operation, size_);
  check_movable(checks, message.tensor, "tensor");
  static_cast<void>(mpi_count(checks, message.tensor.numel()));
  const int limit = own_tag(*group_);
  if (message.tag >= limit) checks.reject("the tag must be from 0 to {}, found {}", limit - 1, message.tag);
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::send_async(const Message& message) {
  MpiCall call(group_, "send", rank_, {c10d::OpType::SEND, /*async=*/true, timeout_or_default(message.timeout)});
  check_send(message);
  start_send(call, call.input(message.tensor, "tensor"), message.peer, message.tag);
  return call.work({message.tensor});
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::receive_async(const Message& message) {
  const bool from_any = message.peer == kAnySource;
  MpiCall call(group_, "recv", rank_,
               {from_any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV, /*async=*/true,
                timeout_or_default(message.timeout)});
  check_receive(message);
  start_receive(call, call.output(message.tensor, "tensor"), from_any ? MPI_ANY_SOURCE : message.peer, message.tag);
  return call.work({message.tensor});
}

// Every rank reports to rank 0, which then tells all that did so which ranks are missing.
void ProcessGroupMpi::monitoredBarrier(const c10d::BarrierOptions& opts, bool /*wait_all_ranks*/) {
  const auto timeout = timeout_or_default(opts.timeout);
  const at::Tensor missing = at::zeros({size_}, at::kInt);
  if (rank_ == 0) {
    lead_barrier(timeout, missing);
  } else {
    barrier_message(at::zeros({1}, at::kInt), 0, Way::kSend);
    // Rank 0 may have begun its wait later than this rank.
    barrier_message(missing, 0, Way::kReceive)->wait(2 * std::min(timeout, timeout.max() / 2));
  }
  std::vector<int> names;
  for (int rank = 0; rank < size_; ++rank) {
    if (missing[rank].item<int>() != 0) names.push_back(global_rank(rank));
  }
  if (names.empty()) return;
  const Status status(ErrorCode::kTimeout, fmt::format("rank(s) {} of the world did not come within {} ms",
                                                       fmt::join(names, ", "), timeout.count()));
  const std::string call = "monitored_barrier" + group_->places().describe(group_->places().current());
  group_->break_with(status.with_context(call));
  throw_status(status, fmt::format("{}, {}", group_->who(), call));
}

void ProcessGroupMpi::lead_barrier(std::chrono::milliseconds timeout, const at::Tensor& missing) {
  std::vector<WorkPtr> arrivals;
  for (int rank = 1; rank < size_; ++rank) {
    arrivals.push_back(barrier_message(at::zeros({1}, at::kInt), rank, Way::kReceive));
  }
  const Deadline deadline = Deadline::after(timeout);
  const auto all_came = [&] {
    return std::all_of(arrivals.begin(), arrivals.end(), [](const WorkPtr& work) { return work->isCompleted(); });
  };
  while (!all_came() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  for (int rank = 1; rank < size_; ++rank) {
    if (!arrivals[rank - 1]->isCompleted()) missing[rank] = 1;
  }
  std::vector<WorkPtr> answers;
  for (int rank = 1; rank < size_; ++rank) {
    if (missing[rank].item<int>() == 0) answers.push_back(barrier_message(missing, rank, Way::kSend));
  }
  for (const WorkPtr& answer : answers) answer->wait(timeout);
}

// Has no deadline of its own: the barrier's counts.
ProcessGroupMpi::WorkPtr ProcessGroupMpi::barrier_message(const at::Tensor& tensor, int peer, Way way) {
  MpiCall call(group_, "monitored_barrier", rank_,
               {c10d::OpType::UNKNOWN, /*async=*/true, std::chrono::milliseconds(-1)});
  const int tag = own_tag(*group_);
  if (way == Way::kSend) {
    start_send(call, call.input(tensor, "tensor"), peer, tag);
  } else {
    start_receive(call, call.output(tensor, "tensor"), peer, tag);
  }
  return call.work({});
}

}  // namespace lockstep

// The only symbol that this library exports; see c10d/backend/backend_plugin.h.
extern "C" const lockstep::BackendPlugin* lockstep_backend() {
  static const lockstep::BackendPlugin plugin{lockstep::kBackendBuild, &lockstep::ProcessGroupMpi::create};
  return &plugin;
}
