#include "c10d/backend/backend_call.h"

#include <map>
#include <typeinfo>
#include <utility>

#include "c10d/backend/group_work.h"
#include "c10d/backend/recorded_place.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/c10d/backend_capabilities.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/process_group_lockstep.h"

namespace lockstep {
namespace {

// The groups of other backends, which nobody but this seam knows in the recorder.
class OtherGroups {
 public:
  static OtherGroups& of_process() {
    static constinit OfProcess<OtherGroups> groups;
    return groups.get();
  }

  // The record, and the number of the collective that begins now.
  std::pair<flight::GroupRecord, std::uint64_t> next(c10d::Backend& backend, bool is_message) {
    MutexLock lock(mutex_);
    auto found = groups_.find(&backend);
    if (found == groups_.end() || found->second.backend.expired()) {
      std::erase_if(groups_, [](const auto& entry) {
        if (!entry.second.backend.expired()) return false;
        entry.second.record.leave();
        return true;
      });
      found = groups_.insert_or_assign(&backend, make(backend)).first;
    }
    return {found->second.record, is_message ? 0 : ++found->second.collectives};
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10d::Backend> backend;
    flight::GroupRecord record;
    std::uint64_t collectives = 0;
  };

  static Entry make(c10d::Backend& backend) {
    std::string name = backend.getGroupDesc();
    std::vector<int> ranks;
    if (dynamic_cast<const BackendCapabilities*>(&backend) != nullptr) {
      try {
        const auto options = backend.getBackendOptions();
        if (!options->group_name.empty()) name = options->group_name;
        for (const auto rank : options->global_ranks_in_group) ranks.push_back(static_cast<int>(rank));
      } catch (const c10::Error&) {
        // A program's backend need not have options. Then the record has the group's own ranks.
      }
    }
    return {c10::weak_intrusive_ptr<c10d::Backend>(
                c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&backend)),
            flight::add_group(name, backend.getBackendName(), backend.getRank(), backend.getSize(), ranks)};
  }

  Mutex mutex_;
  std::map<const c10d::Backend*, Entry> groups_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

bool BackendCall::is_engine(const c10d::Backend& backend) {
  return typeid(backend) == typeid(ProcessGroupLockstep) ||
         dynamic_cast<const ProcessGroupLockstep*>(&backend) != nullptr;
}

BackendCall::Size BackendCall::size_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {static_cast<std::uint64_t>(tensor.numel()), static_cast<std::uint8_t>(tensor.scalar_type())};
}

BackendCall::Size BackendCall::size_of(const List& tensors) {
  Size all;
  for (const at::Tensor& tensor : tensors) {
    const Size one = size_of(tensor);
    all = {all.elements + one.elements, one.type};
  }
  return all;
}

BackendCall::Size BackendCall::size_of(const Lists& lists) {
  Size all;
  for (const List& list : lists) {
    const Size one = size_of(list);
    all = {all.elements + one.elements, one.type};
  }
  return all;
}

flight::Ticket BackendCall::begin_sized(const Size& output, const Size& input) const {
  const bool message = flight::is_message(op_);
  const auto [record, number] = OtherGroups::of_process().next(backend_, message);
  flight::Call call{.op = op_,
                    .type = std::max(input.type, output.type),
                    .waits = !async_,
                    .peer = static_cast<std::int32_t>(root_),
                    .number = message ? static_cast<std::uint64_t>(tag_) : number,
                    .input = op_ == flight::Op::kReceive ? 0 : input.elements,
                    .output = op_ == flight::Op::kSend ? 0 : output.elements};
  record_place(record, call);
  return record.begin(call, flight::Clock::now());
}

c10::intrusive_ptr<c10d::Work> BackendCall::finish(c10::intrusive_ptr<c10d::Work> work, std::int64_t hook,
                                                   const flight::Ticket& ticket) const {
#ifdef C10D_BACKEND_HAS_HOOKS
  if (group_ != nullptr) group_->firePostHook(hook_name(), async_, hook, work);
#else
  static_cast<void>(hook);
#endif
  if (!ticket.is_recorded()) return work;
  if (auto* const ours = dynamic_cast<GroupWork*>(work.get())) {
    ours->record_as(ticket);
    return work;
  }
  const bool is_host = !capabilities_of(backend_).orders_by_stream();
  if (!async_ && is_host && work != nullptr) work->wait();
  ticket.end(!async_ && is_host ? flight::Outcome::kDone : flight::Outcome::kHandedOver);
  return work;
}

// Called in the handler of the error.
void BackendCall::failed(const flight::Ticket& ticket) {
  ticket.end(flight::Outcome::kFailed);
  try {
    throw;
  } catch (const std::exception& error) {
    const ErrorCode code = error_code(error);
    if (code == ErrorCode::kTimeout || code == ErrorCode::kPeerFailed) flight::dump_once();
  } catch (...) {  // not this library's
  }
}

#ifdef C10D_BACKEND_HAS_HOOKS
c10d::HookOpName BackendCall::hook_name() const {
  using Name = c10d::HookOpName;
  switch (op_) {
    case flight::Op::kBroadcast: return Name::BROADCAST;
    case flight::Op::kAllReduce: return Name::ALLREDUCE;
    case flight::Op::kAllReduceCoalesced: return Name::ALLREDUCE_COALESCED;
    case flight::Op::kReduce: return Name::REDUCE;
    case flight::Op::kAllGather: return Name::ALLGATHER;
    case flight::Op::kAllGatherIntoTensor: return Name::ALLGATHER_BASE;
    case flight::Op::kAllGatherCoalesced: return Name::ALLGATHER_COALESCED;
    case flight::Op::kGather: return Name::GATHER;
    case flight::Op::kScatter: return Name::SCATTER;
    case flight::Op::kReduceScatter: return Name::REDUCE_SCATTER;
    case flight::Op::kAllToAllSingle: return Name::ALLTOALL_BASE;
    case flight::Op::kAllToAll: return Name::ALLTOALL;
    case flight::Op::kSend: return Name::SEND;
    case flight::Op::kReceive:
    case flight::Op::kReceiveFromAny: return Name::RECV;
    case flight::Op::kBarrier:
    case flight::Op::kMonitoredBarrier: return Name::BARRIER;
    case flight::Op::kReduceScatterTensor: return Name::REDUCE_SCATTER_BASE;
    case flight::Op::kAllGatherIntoTensorCoalesced: return Name::ALLGATHER_INTO_TENSOR_COALESCED;
    case flight::Op::kReduceScatterTensorCoalesced: return Name::REDUCE_SCATTER_TENSOR_COALESCED;
    case flight::Op::kOther: break;
  }
  return Name::UNKNOWN;
}
#endif

}  // namespace lockstep
