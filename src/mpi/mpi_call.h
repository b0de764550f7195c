// One call of an MPI group's method, from its arguments to its Work.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <vector>

#include "c10d/call_checks.h"
#include "c10d/output_memory.h"
#include "mpi/mpi_runtime.h"
#include "mpi/mpi_work.h"

namespace lockstep {

// What MPI does not move: too many elements for its counts, quantized tensors.
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

  // Row-major host memory whose contents become those of `tensor` when the call is done, itself where possible. All
  // outputs of a call come before its inputs.
  at::Tensor output(const at::Tensor& tensor, const char* name);
  // Row-major host memory with the elements of `tensor`, itself where possible: MPI does not allow that it overlaps an
  // output.
  at::Tensor input(const at::Tensor& tensor, const char* name);
  // Both.
  at::Tensor in_place(const at::Tensor& tensor, const char* name);
  // The same for tensors of one dtype that lie one after the other in MPI's view of them.
  at::Tensor flat_input(const std::vector<at::Tensor>& tensors, const char* name);
  at::Tensor flat_output(const std::vector<at::Tensor>& tensors, const char* name);

  // Where each rank's part of a flat tensor is, in elements.
  struct Layout {
    std::vector<int> counts;
    std::vector<int> offsets;
  };
  Layout layout(const std::vector<at::Tensor>& tensors) const;
  Layout layout(const std::vector<std::int64_t>& elements) const;
  int count(std::int64_t elements) const { return mpi_count(*this, elements); }
  // Kept until MPI is done, which may read it until then.
  const Layout& keep(Layout layout);

  // Everything that this rank has started before, messages apart, is settled before this call is.
  void follow_earlier_works();

  // Run when MPI is done and before copies to outputs.
  void after(std::function<void()> finisher) { arithmetic_.push_back(std::move(finisher)); }

  // `begin(runtime, communicator, request)` makes one non-blocking call of MPI and answers its code.
  template <typename Begin>
  void start(const Begin& begin) {
    MpiRuntime& runtime = MpiRuntime::of_process();
    MPI_Request request = MPI_REQUEST_NULL;
    Status status;
    {
      MutexLock lock(runtime.mutex());
      if (runtime.is_usable()) {
        status = mpi_status(begin(runtime, pending_.group->communicator(), &request), "MPI");
      } else {
        status = Status(ErrorCode::kAborted, "MPI was finalised");
      }
    }
    if (!status.ok()) fail(status);
    pending_.requests.push_back(request);
  }

  // The answer of the method; `outputs` is what Work::result() and its future give. Blocks unless the call is
  // asynchronous.
  c10::intrusive_ptr<c10d::Work> work(std::vector<at::Tensor> outputs);

 private:
  [[noreturn]] void fail(const Status& status);

  int rank_;
  Options options_;
  MpiWork::Pending pending_;
  OutputMemory outputs_;
  std::vector<std::function<void()>> arithmetic_;
  at::RecordFunction record_{at::RecordScope::USER_SCOPE};  // costs nothing unless a profiler is on
};

// MPI's address of a tensor's elements: never null, which some calls refuse even for no elements.
void* mpi_address(const at::Tensor& tensor);

}  // namespace lockstep
