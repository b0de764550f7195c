// One call of an MPI group's method, from its arguments to its Work.
#pragma once

#include <ATen/record_function.h>

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "c10d/backend/call_checks.h"
#include "c10d/backend/group_errors.h"
#include "c10d/backend/output_memory.h"
#include "mpi/mpi_runtime.h"
#include "mpi/mpi_work.h"

namespace lockstep {

// These refuse what MPI does not move: more elements than its counts allow, quantized tensors.
int mpi_count(const CallChecks& checks, std::int64_t elements);
void check_movable(const CallChecks& checks, const at::Tensor& tensor, const char* name);

class MpiCall : public CallChecks {
 public:
  struct Options {
    c10d::OpType type;
    bool async;
    std::chrono::milliseconds timeout;
  };

  // Throws when the group is broken or was left.
  MpiCall(const std::shared_ptr<MpiGroup>& group, const char* operation, int rank, const Options& options);

  int rank() const { return rank_; }

  // Row-major host memory whose contents become those of `tensor` when the call is done; the tensor's own where
  // possible. Call this for all outputs before the first input.
  at::Tensor output(const at::Tensor& tensor, const char* name);
  // Row-major host memory with the elements of `tensor`; the tensor's own where possible. It never overlaps an output,
  // which MPI does not allow.
  at::Tensor input(const at::Tensor& tensor, const char* name);
  // Output and input in one.
  at::Tensor in_place(const at::Tensor& tensor, const char* name);
  // The same for tensors of one dtype: one flat tensor for MPI, which holds them one after the other.
  at::Tensor flat_input(const std::vector<at::Tensor>& tensors, const char* name);
  at::Tensor flat_output(const std::vector<at::Tensor>& tensors, const char* name);

  // Where each rank's slice of a flat tensor is, in elements.
  struct Layout {
    std::vector<int> counts;
    std::vector<int> offsets;
  };
  Layout layout(const std::vector<at::Tensor>& tensors) const;
  Layout layout(const std::vector<std::int64_t>& elements) const;
  int count(std::int64_t elements) const { return mpi_count(*this, elements); }
  // Keeps the layout until MPI is done: MPI may read it until then.
  const Layout& keep(Layout layout);

  // Makes checks that depend on this rank's role in the call (root or not), so that other ranks do not fail. An error
  // breaks the group on this rank at once.
  template <typename Checks>
  void check_own_role(const Checks& checks) {
    try {
      checks();
    } catch (const std::exception& error) {
      break_here(error);
      throw;
    }
  }

  // This call settles after all collectives that this rank has started before.
  void follow_earlier_works();

  // `finisher` runs when MPI is done, before copies to outputs.
  void after(std::function<void()> finisher) { arithmetic_.push_back(std::move(finisher)); }

  // `begin(runtime, communicator, request)` makes one non-blocking call of MPI and returns its code.
  template <typename Begin>
  void start(const Begin& begin) {
    has_begun_ = true;
    MpiRuntime& runtime = MpiRuntime::of_process();
    MPI_Request request = MPI_REQUEST_NULL;
    Status status;
    bool left = false;  // by another thread, since this call began
    {
      MutexLock lock(runtime.mutex());
      left = pending_.group->communicator() == MPI_COMM_NULL;
      if (left) {
        status = left_group();
      } else if (runtime.is_usable()) {
        status = mpi_status(begin(runtime, pending_.group->communicator(), &request), "MPI");
        if (status.ok()) pending_.group->begin_request();
      } else {
        status = Status(ErrorCode::kAborted, "MPI was finalised");
      }
    }
    if (!status.ok()) fail(status, left);
    pending_.requests.push_back(request);
  }

  // `error` was thrown in this call. If it has not begun, and is a collective, tells the other ranks.
  void refuse(const std::exception& error);

  // What the method returns; `outputs` is for Work::result() and its future. Blocks unless the call is asynchronous.
  c10::intrusive_ptr<c10d::Work> work(std::vector<at::Tensor> outputs);

 private:
  // " at src/train.cpp:41"; empty if the place is not known.
  std::string place() const { return pending_.group->places().describe(pending_.place); }
  std::string describe() const { return pending_.group->describe(operation(), pending_.sequence, pending_.place); }
  [[noreturn]] void fail(const Status& status, bool left = false);
  void break_here(const std::exception& error);

  int rank_;
  Options options_;
  std::uint64_t collective_ = 0;  // its number; 0: a message
  bool has_begun_ = false;
  MpiWork::Pending pending_;
  OutputMemory outputs_;
  std::vector<std::function<void()>> arithmetic_;
  at::RecordFunction record_{at::RecordScope::USER_SCOPE};  // costs nothing unless a profiler is on
};

// The address of a tensor's elements for MPI: never null, since some calls refuse null even for no elements.
void* mpi_address(const at::Tensor& tensor);

}  // namespace lockstep
