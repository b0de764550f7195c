// ReducerState: what a reducer keeps from pass to pass. What lives only as long as a pass is in BackwardPass.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "c10d/streams.h"
#include "gradient_buckets.h"
#include "lockstep/base/mutex.h"
#include "lockstep/nn/reducer.h"
#include "nn/device_backend.h"
#include "packed_buffers.h"
#include "pass_report.h"
#include "program_passes.h"
#include "reduced_parameters.h"

namespace lockstep::nn_detail {

// What the program may ask for at any time. The lock is not that of the reducer: communication hooks, which run under
// the reducer's lock, may ask too. No other lock is taken under this one.
struct ReducerStatistics {
  Mutex mutex;
  std::size_t bucket_bytes LOCKSTEP_GUARDED_BY(mutex) = 0;
  Reducer::PlacementStats placement LOCKSTEP_GUARDED_BY(mutex) = {0, 0};
  Reducer::SentBytes sent LOCKSTEP_GUARDED_BY(mutex) = {0, 0};
  Reducer::CommTime comm_time LOCKSTEP_GUARDED_BY(mutex);
};

// The reducer's lock (Reducer::Impl::mutex) guards all members that are neither constant nor atomic, except
// `statistics`, which have a lock of their own.
struct ReducerState {
  // Collective, as the constructor of Reducer is.
  ReducerState(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers, const ProcessGroup& group,
               const ReducerOptions& options, CallSite site, ReducedParameters::OnGradient on_gradient);

  // False until the end of the first pass, which builds them.
  bool has_buckets() const { return report.has_value(); }
  void follow_buffers() {
    if (replaced_buffers) buffers.replace(replaced_buffers());
  }
  void start_buffers() {
    follow_buffers();
    buffers.start(buffer_source);
  }

  const ReducerOptions options;
  const CallSite site;       // of the program, for errors
  const ProcessGroup group;  // of the reducer's own
  const DeviceBackend backend;
  ReducedParameters parameters;
  GradientBuckets buckets;
  PackedBuffers buffers;
  std::function<std::vector<torch::Tensor>()> replaced_buffers;
  // Buffers are sent at the start of a pass, and again at its end if they have changed since: on the CPU, where the
  // report tells of the change. On a device the program would have to wait to hear of it. So there they are sent once,
  // at the end.
  const bool sends_buffers_early;
  std::optional<PassReport> report;  // made after the buckets
  ProgramPasses passes;
  std::uint64_t passes_begun = 0;  // that send; the same number on all ranks

  std::shared_ptr<CommHook> hook;  // null: the buckets are all-reduced
  bool hook_is_checked = false;    // the ranks have compared it
  // Where collectives are work of streams, so is what hooks do: it need not hold up the backward pass.
  std::optional<SideStream> hook_stream;
  // With static_graph: which parameters this rank used in its first pass of its own. In a join that pass may be later
  // than the one that built the buckets.
  std::optional<std::vector<bool>> used_in_first_pass;

  // Set between passes, or under the lock by the callback before a pass.
  std::atomic<int> buffer_source = 0;
  std::atomic<double> gradient_scale = 1;
  // Whether another reducer shares parameters with this one.
  std::atomic<bool> has_family = false;
  ReducerStatistics statistics;
};

}  // namespace lockstep::nn_detail
