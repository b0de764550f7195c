// One call of a group's method, from its arguments to its Work: checks tensors and turns them into memory for the
// engine, runs or starts the engine's operations, and names the rank and the operation in every error.
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

#include "c10d/backend/call_checks.h"
#include "c10d/backend/group_core.h"
#include "c10d/backend/held_memory.h"
#include "c10d/backend/lockstep_work.h"
#include "c10d/backend/output_memory.h"
#include "c10d/backend/staging.h"
#include "c10d/backend/tensor_rules.h"
#include "flight/recorder.h"
#include "lockstep/base/deadline.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/engine/communicator.h"

namespace lockstep {

enum class Blocking { kNo, kYes };
inline Blocking blocking(bool async_op) {
  return async_op ? Blocking::kNo : Blocking::kYes;
}

struct CallOptions {
  c10d::OpType type;
  Blocking blocking;
  std::chrono::milliseconds timeout;
  int peer = -1;  // the root or the other end, for the flight recorder
  int tag = 0;    // of a message
};

class CollectiveCall : public CallChecks {
 public:
  // `operation` is the public name of the called function; `inputs` are for profiles. Throws when the group was left.
  CollectiveCall(const std::shared_ptr<GroupCore>& group, const char* operation, const CallOptions& options,
                 at::TensorList inputs = {});
  ~CollectiveCall();

  int rank() const { return communicator_->rank(); }

  // Returns row-major memory. When the call is done, `tensor` gets its contents. Where outputs share memory, the last
  // one counts. Call this for all outputs before the first input.
  comm::Piece output(const at::Tensor& tensor, const char* name);
  // Returns row-major memory with the elements of `tensor`. No output of this call overwrites it, with one exception: a
  // piece `own` of an output may be the same memory as this rank's slice of `tensor`, which begins at byte `own_at`.
  comm::ConstPiece input(const at::Tensor& tensor, const char* name, const comm::Piece& own = {},
                         std::size_t own_at = 0);
  // Output and input in one.
  comm::Piece in_place(const at::Tensor& tensor, const char* name);

  // Memory for `elements` of the dtype of `like`, until the call is done: an operand in place of the caller's tensors.
  at::Tensor make_operand(const at::Tensor& like, std::int64_t elements);
  // When the call is done, `destination` becomes equal to `from`.
  void copy_later(const at::Tensor& from, const at::Tensor& destination, const char* name);

  // This call settles after all collectives that this rank has started before.
  void follow_earlier_works();

  // Returns what `make` returns. `make` does the checks that this rank can do alone. If it throws, the other ranks are
  // told in place of `count` operations, so that none of them waits for this rank.
  template <typename Make>
  auto prepare(const Make& make, std::size_t count = 1) {
    try {
      return make();
    } catch (const std::exception& error) {
      refuse(error, count);
      throw;
    }
  }

  // Runs or starts the operation that `make` returns, or the vector of them.
  template <typename Make>
  void collective(const Make& make, std::size_t count = 1) {
    if (count == 0) prepare([&] { reject("the lists are empty: requires non-empty tensor list"); });
    submit(prepare(make, count));
  }

  // For messages, which concern one other rank only: other ranks are not told of errors.
  template <typename Operation>
  void submit(const Operation& operation) {
    begin_record();
    const Status status = begin(operation);
    end_record(status);
    if (!status.ok()) check(status, communicator_->sequence());
  }

  // What the method returns; `outputs` is for Work::result() and its future.
  c10::intrusive_ptr<c10d::Work> work(std::vector<at::Tensor> outputs);

 private:
  template <typename Operation>
  Status begin(const Operation& operation) {
    if (options_.blocking == Blocking::kYes) return communicator_->run(operation, deadline_);
    LOCKSTEP_ASSIGN_OR_RETURN(comm::Operation started, communicator_->start(operation, kept_));
    operations_.push_back(std::move(started));
    return {};
  }
  // Submits the rest also after a mismatch, so that all ranks stay in step.
  template <typename Operation>
  void submit(std::vector<Operation> operations) {
    Status first;
    std::uint64_t number = 0;
    begin_record();
    for (Operation& operation : operations) {
      operation.list = static_cast<int>(operations.size());
      const Status status = begin(operation);
      if (status.ok()) continue;
      if (first.ok()) number = communicator_->sequence();
      if (first.ok()) first = status;
      if (status.code() != ErrorCode::kMismatch) break;
    }
    end_record(first);
    check(first, number);
  }
  // The entry in the flight recorder. That of a started operation ends with its work.
  void begin_record();
  void end_record(const Status& status) {
    if (options_.blocking == Blocking::kYes || !status.ok()) {
      recorded_.end(status.ok() ? flight::Outcome::kDone : flight::Outcome::kFailed);
    }
  }
  void count(const at::Tensor& tensor, std::uint64_t& elements) {
    elements += static_cast<std::uint64_t>(tensor.numel());
    noted_.type = static_cast<std::uint8_t>(tensor.scalar_type());
  }
  void refuse(const std::exception& error, std::size_t count);
  at::Tensor temporary_for(const at::Tensor& tensor);
  void keep(const at::Tensor& tensor);
  void record(at::TensorList inputs);
  void check(const Status& status, std::uint64_t sequence) const;

  const std::shared_ptr<GroupCore>& group_;
  std::shared_ptr<comm::Communicator> communicator_;
  CallOptions options_;
  Deadline deadline_;
  flight::Call noted_;
  flight::Ticket recorded_;
  std::shared_ptr<std::vector<HeldMemory>> kept_;  // what started operations use
  std::vector<at::Tensor> temporaries_;            // of blocking calls
  OutputMemory outputs_;
  std::vector<CopyBack> copies_;
  WorksUnderWay::Shared earlier_;
  std::vector<comm::Operation> operations_;
  std::shared_ptr<at::RecordFunction> record_;  // null unless a profiler is on
};

}  // namespace lockstep
