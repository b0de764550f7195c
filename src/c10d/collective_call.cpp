#include "c10d/collective_call.h"

namespace lockstep {
namespace {

// As c10d's other backends name their operations in profiles.
const char* profile_title(c10d::OpType type, const char* operation) {
  switch (type) {
    case c10d::OpType::ALLREDUCE_COALESCED: return "all_reduce";
    case c10d::OpType::_ALLGATHER_BASE:
    case c10d::OpType::ALLGATHER_COALESCED: return "all_gather";
    case c10d::OpType::_REDUCE_SCATTER_BASE: return "reduce_scatter";
    case c10d::OpType::ALLTOALL_BASE: return "all_to_all";
    case c10d::OpType::RECVANYSOURCE: return "recvAnySource";
    default: return operation;
  }
}

}  // namespace

CollectiveCall::CollectiveCall(const std::shared_ptr<GroupCore>& group, const char* operation,
                               const CallOptions& options, at::TensorList inputs)
    : CallChecks(group->who(), operation, group->world_size()),
      group_(group),
      communicator_(group_->communicator()),
      options_(options),
      deadline_(Deadline::after(options.timeout)) {
  record(inputs);
  if (communicator_ == nullptr) {
    throw BackendError(
        ErrorCode::kAborted,
        fmt::format("{}, {}: this rank has left the group (destroy_process_group or shutdown)", who(), operation));
  }
  if (options_.blocking == Blocking::kNo) kept_ = std::make_shared<std::vector<at::Tensor>>();
}

CollectiveCall::~CollectiveCall() {
  if (record_ != nullptr) record_->end();
}

void CollectiveCall::record(at::TensorList inputs) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return;
  record_ = std::make_shared<at::RecordFunction>(std::move(*callbacks));
  // The work may end in another thread.
  record_->_setAsync();
  const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  record_->before(fmt::format("{}:{}", group_->profiled_as(), profile_title(options_.type, operation())),
                  c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
}

void CollectiveCall::check(const Status& status) const {
  if (status.ok()) return;
  // Messages are not counted.
  const bool is_message = options_.type == c10d::OpType::SEND || options_.type == c10d::OpType::RECV ||
                          options_.type == c10d::OpType::RECVANYSOURCE;
  group_->fail(status, operation(), is_message ? 0 : communicator_->sequence());
}

void CollectiveCall::keep(const at::Tensor& tensor) {
  if (kept_ != nullptr) kept_->push_back(tensor);
}

comm::ConstPiece CollectiveCall::input(const at::Tensor& tensor, const char* name) {
  check_readable(tensor, name);
  if (is_plain_memory(tensor)) {
    keep(tensor);
    return {tensor.const_data_ptr(), byte_size(tensor)};
  }
  at::Tensor temporary = make_temporary(tensor);
  copy_elements(temporary, tensor);
  keep(temporary);
  if (kept_ == nullptr) temporaries_.push_back(temporary);
  return {temporary.const_data_ptr(), byte_size(temporary)};
}

comm::Piece CollectiveCall::output(const at::Tensor& tensor, const char* name) {
  check_writable(tensor, name);
  if (is_plain_memory(tensor)) {
    keep(tensor);
    return {tensor.mutable_data_ptr(), byte_size(tensor)};
  }
  wait_for_device(tensor);
  at::Tensor temporary = make_temporary(tensor);
  keep(temporary);
  copies_.push_back({temporary, tensor});
  return {temporary.mutable_data_ptr(), byte_size(temporary)};
}

comm::Piece CollectiveCall::in_place(const at::Tensor& tensor, const char* name) {
  const comm::Piece piece = output(tensor, name);
  if (!is_plain_memory(tensor)) copy_elements(copies_.back().temporary, tensor);
  return piece;
}

c10::intrusive_ptr<c10d::Work> CollectiveCall::work(std::vector<at::Tensor> outputs) {
  if (options_.blocking == Blocking::kYes) {
    copy_back(copies_);
    return c10::make_intrusive<LockstepWork>(rank(), options_.type, std::move(outputs));
  }
  LockstepWork::Pending pending{group_,    operation(),       std::move(operations_), std::move(copies_),
                                deadline_, std::move(record_)};
  return c10::make_intrusive<LockstepWork>(rank(), options_.type, std::move(outputs), std::move(pending));
}

}  // namespace lockstep
