// A group formed anew, for c10d.
#include <fmt/format.h>

#include "c10d/backend/call_checks.h"
#include "c10d/backend/group_core.h"
#include "c10d/backend/lockstep_work.h"
#include "c10d/world/open_meeting_place.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "store/membership/meeting_place.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace lockstep {

std::shared_ptr<comm::MeetingPlace> ProcessGroupLockstep::meeting_place() const {
  core()->check_process();
  const std::shared_ptr<comm::Store> store = this->store();
  MutexLock lock(place_mutex_);
  if (place_ == nullptr) place_ = open_meeting_place(*store, /*job_key=*/{}, who() + ", get_reconfigure_handle");
  return place_;
}

c10d::ReconfigureHandle ProcessGroupLockstep::get_reconfigure_handle() const {
  return meeting_place()->handle(rank_);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupLockstep::reconfigure(const c10d::ReconfigureOptions& opts) {
  const std::string context = who() + ", reconfigure";
  const OneCall one(reconfiguring_, context);
  const auto timeout = opts.timeout.value_or(timeout_or_default(c10d::kUnsetTimeout));
  comm::ReconfigureCall call{name(), opts.uuid};
  call.ordered = std::holds_alternative<std::vector<c10d::ReconfigureHandle>>(opts.handles);
  std::visit([&](const auto& handles) { call.handles.assign(handles.begin(), handles.end()); }, opts.handles);
  call.deadline = Deadline::after(timeout);
  const auto place = meeting_place();
  if (const Status wrong = place->check(call); !wrong.ok()) throw_status(wrong, context);

  const Status why = replaced_by(name(), fmt::format("uuid {}", opts.uuid));
  for (const auto& twin : twins()) {
    if (auto* const own = dynamic_cast<ProcessGroupLockstep*>(twin.get())) own->retire(kAtOnce, why);
  }
  retire(kAtOnce, why);
  core()->leave();

  auto met = place->meet(call);
  if (!met.ok()) throw_status(met.status(), context);
  const comm::Rendezvous& found = met->rendezvous;
  ProcessGroupLockstepOptions options;
  options.rank = found.rank;
  options.world_size = found.world_size;
  options.name = name();
  options.timeout = call.deadline.remaining_ms();
  options.members = found.members;
  options.profiled_as = profiled_as_;
  renew_core(join(found.store, options));
  blocks_ = 0;
  renew({found.store, options.name, options.rank, options.world_size, {}, timeout_or_default(c10d::kUnsetTimeout)});
  met->formed();
  return c10::make_intrusive<LockstepWork>(rank_, c10d::OpType::UNKNOWN, std::vector<at::Tensor>());
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupLockstep::shrink(const std::vector<int64_t>& ranks_to_exclude,
                                                               int shrink_flags,
                                                               const c10::intrusive_ptr<Options>& opts_override) {
  constexpr int kAbort = 1;  // torch.distributed's SHRINK_ABORT
  const CallChecks checks(who(), "shrink", size_);
  std::vector<bool> excluded(size_);
  for (const int64_t rank : ranks_to_exclude) {
    if (rank < 0 || rank >= size_) checks.reject("{} is not a rank of this group of {}", rank, size_);
    if (rank == rank_) checks.reject("this rank is among those to exclude; it must not call it");
    excluded[rank] = true;
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!excluded[rank]) ranks.push_back(rank);
  }
  if ((shrink_flags & kAbort) != 0) abort();
  return split(nullptr, ranks, opts_override);
}

}  // namespace lockstep

#endif
