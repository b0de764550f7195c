// Making and leaving an MPI group, its barriers, and the library's entry.
#include "mpi/process_group_mpi.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/c10d/errors.h"
#include "lockstep/store/prefix_store.h"
#include "mpi/mpi_runtime.h"
#include "store/membership/join_group.h"

namespace lockstep {
namespace {

// Before this rank meets the others, who might learn of nothing but its absence.
void check_usable(MpiRuntime& runtime, const BackendRequest& request) {
  MutexLock lock(runtime.mutex());
  if (runtime.is_usable()) return;
  throw BackendError(
      ErrorCode::kAborted,
      fmt::format("backend mpi, group '{}': MPI was finalised already in this process; call MPI_Finalize "
                  "after the last process group",
                  request.name));
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
  // Making a communicator has no deadline: first find out, with one, that everyone is here.
  const std::string members = "members";
  auto met = comm::join_group(*request.store, members, comm::make_participant(request.rank, request.world_size()),
                              Deadline::after(request.timeout));
  if (!met.ok()) throw_status(met.status(), who + ", joining the group");
  comm::forget_group(*request.store, members, met.value(), request.world_size());
  auto communicator = runtime.make_communicator(request.global_ranks);
  if (!communicator.ok()) throw_status(communicator.status(), who + ", joining the group");
  std::shared_ptr<MpiGroup> group(new MpiGroup(*communicator, who, request.world_size()), LeakInForks());
  runtime.enter_group(request.timeout);
  return c10::intrusive_ptr<c10d::Backend>::unsafe_steal_from_new(new ProcessGroupMpi(request, std::move(group)));
}

ProcessGroupMpi::ProcessGroupMpi(BackendRequest request, std::shared_ptr<MpiGroup> group)
    : Backend(request.rank, request.world_size()),
      request_(std::move(request)),
      group_(std::move(group)),
      timeout_(request_.timeout) {}

ProcessGroupMpi::~ProcessGroupMpi() {
  group_->leave();
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupMpi::getBackendOptions() {
  auto options = c10::make_intrusive<Options>("mpi", timeout_.load());
  options->group_name = request_.name;
  options->global_ranks_in_group.assign(request_.global_ranks.begin(), request_.global_ranks.end());
  return options;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupMpi::split(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                         const std::vector<int>& ranks,
                                                         const c10::intrusive_ptr<Options>& opts) {
  const CallChecks checks(group_->who(), "split", size_);
  BackendRequest part = request_;
  part.rank = -1;
  part.global_ranks.clear();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size_) checks.reject("{} is not a rank of this group of {}", ranks[i], size_);
    if (ranks[i] == rank_) part.rank = static_cast<int>(i);
    part.global_ranks.push_back(request_.global_ranks[ranks[i]]);
  }
  if (part.rank < 0) checks.reject("this rank is not among the ranks {{{}}}", fmt::join(ranks, ","));
  const std::string members = fmt::format("{}/split{{{}}}", request_.name, fmt::join(ranks, ","));
  // LibTorch hands every part of a split the options of the whole.
  const bool own_name = opts != nullptr && !opts->group_name.empty() && opts->group_name != request_.name;
  part.name = own_name ? opts->group_name : members;
  part.timeout = opts == nullptr ? timeout_.load() : opts->timeout;
  // The members meet under what only they have in common: how often they have split off in this way.
  int number = 0;
  {
    MutexLock lock(mutex_);
    number = ++splits_[members];
  }
  part.store = std::make_shared<comm::PrefixStore>(fmt::format("{}#{}", members, number), request_.store);
  return create(part);
}

void ProcessGroupMpi::abort() {
  group_->break_with(Status(ErrorCode::kAborted, group_->who() + " aborted it"));
}

c10d::ErrorType ProcessGroupMpi::getError() {
  switch (group_->error().code()) {
    case ErrorCode::kOk: return c10d::ErrorType::SUCCESS;
    case ErrorCode::kTimeout: return c10d::ErrorType::TIMEOUT;
    case ErrorCode::kAborted: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

ProcessGroupMpi::WorkPtr ProcessGroupMpi::barrier(const c10d::BarrierOptions& opts) {
  MpiCall call(group_, "barrier", rank_, options(c10d::OpType::BARRIER, opts));
  call.follow_earlier_works();
  call.start([](MpiRuntime&, MPI_Comm comm, MPI_Request* request) { return MPI_Ibarrier(comm, request); });
  return call.work({});
}

}  // namespace lockstep

// The one symbol that this library shows; see c10d/backend_plugin.h.
extern "C" const lockstep::BackendPlugin* lockstep_backend() {
  static const lockstep::BackendPlugin plugin{lockstep::kBackendBuild, &lockstep::ProcessGroupMpi::create};
  return &plugin;
}
