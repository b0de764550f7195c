// One call of a group's method, from its arguments to its Work: checks tensors and turns them into memory of the core,
// runs or starts the core's operations, and says in every error who called what.
#pragma once

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/call_checks.h"
#include "c10d/group_core.h"
#include "c10d/lockstep_work.h"
#include "c10d/staging.h"
#include "c10d/tensor_rules.h"
#include "lockstep/base/deadline.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/comm/collective/communicator.h"

namespace lockstep {

enum class Blocking { kNo, kYes };
inline Blocking blocking(bool async_op) {
  return async_op ? Blocking::kNo : Blocking::kYes;
}

struct CallOptions {
  c10d::OpType type;
  Blocking blocking;
  std::chrono::milliseconds timeout;
};

class CollectiveCall : public CallChecks {
 public:
  // `operation` is the public name of what was called. Throws when the group was left.
  // `inputs` are shown in profiles.
  CollectiveCall(const std::shared_ptr<GroupCore>& group, const char* operation, const CallOptions& options,
                 at::TensorList inputs = {});
  ~CollectiveCall();

  int rank() const { return communicator_->rank(); }

  // Row-major memory with the elements of `tensor`.
  comm::ConstPiece input(const at::Tensor& tensor, const char* name);
  // Row-major memory whose contents become those of `tensor` when the call is done.
  comm::Piece output(const at::Tensor& tensor, const char* name);
  // Both.
  comm::Piece in_place(const at::Tensor& tensor, const char* name);

  // Runs the operation, or starts it. All checks come before the first one.
  template <typename Operation>
  void submit(const Operation& operation) {
    if (options_.blocking == Blocking::kYes) {
      check(communicator_->run(operation, deadline_));
      return;
    }
    Result<comm::Operation> started = communicator_->start(operation, kept_, deadline_);
    check(started.status());
    operations_.push_back(std::move(started).value());
  }

  // The answer of the method; `outputs` is what Work::result() and its future give.
  c10::intrusive_ptr<c10d::Work> work(std::vector<at::Tensor> outputs);

 private:
  void keep(const at::Tensor& tensor);
  void record(at::TensorList inputs);
  void check(const Status& status) const;

  const std::shared_ptr<GroupCore>& group_;
  std::shared_ptr<comm::Communicator> communicator_;
  CallOptions options_;
  Deadline deadline_;
  std::shared_ptr<std::vector<at::Tensor>> kept_;  // what the core uses: until the operation is done, or the call
  std::vector<at::Tensor> temporaries_;            // of blocking calls
  std::vector<CopyBack> copies_;
  std::vector<comm::Operation> operations_;
  std::shared_ptr<at::RecordFunction> record_;  // null unless a profiler is on
};

}  // namespace lockstep
