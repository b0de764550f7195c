// Making and leaving an MPI group, its barriers, and the library's entry.
#include "mpi/process_group_mpi.h"

#include <fmt/format.h>

#include <algorithm>

#include "c10d/backend/group_errors.h"
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

void check_place(const MpiRuntime& runtime, const BackendRequest& request) {
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

}  // namespace

c10::intrusive_ptr<c10d::Backend> ProcessGroupMpi::create(const BackendRequest& request) {
  MpiRuntime& runtime = MpiRuntime::of_process();
  check_usable(runtime, request);
  check_place(runtime, request);
  const std::string who = describe_member(request.rank, request.name, request.global_ranks);
  // MPI makes communicators without a deadline: first make sure, with one, that all members are here.
  const std::string members = "members";
  const auto here = comm::exchange_members(*request.store, members, comm::Roster(request.global_ranks),
                                           comm::describe_this_process(request.rank, request.group_size()),
                                           Deadline::after(request.timeout));
  if (!here.ok()) throw_status(here.status(), who + ", joining the group");
  comm::delete_by_last_rank(*request.store, members + "/done", request.group_size(), comm::membership_keys(members));
  auto communicator = runtime.make_communicator(request.global_ranks);
  if (!communicator.ok()) throw_status(communicator.status(), who + ", joining the group");
  auto refusals = std::make_unique<Refusals>(request.store, request.rank, request.global_ranks);
  std::shared_ptr<MpiGroup> group(new MpiGroup(*communicator, who, request.group_size(), std::move(refusals)),
                                  LeakInForks());
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
  return create(
      {std::move(part.store), std::move(part.name), part.rank, std::move(part.global_ranks), {}, part.timeout});
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

}  // namespace lockstep

// The only symbol that this library exports; see c10d/backend/backend_plugin.h.
extern "C" const lockstep::BackendPlugin* lockstep_backend() {
  static const lockstep::BackendPlugin plugin{lockstep::kBackendBuild, &lockstep::ProcessGroupMpi::create};
  return &plugin;
}
