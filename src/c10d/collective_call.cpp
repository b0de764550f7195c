#include "c10d/collective_call.h"

#include <c10/core/GradMode.h>

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

// The factor travels as a double or as a tensor of one element.
double premul_factor(const c10d::ReduceOp& op) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw ArgumentError(ErrorCode::kInvalidArgument,
                        "PREMUL_SUM without a factor: make it with lockstep::premul_sum(factor)");
  }
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

}  // namespace

CollectiveCall::CollectiveCall(const std::shared_ptr<GroupCore>& group, const char* operation,
                               const CallOptions& options, at::TensorList inputs)
    : group_(group),
      communicator_(group_->communicator()),
      operation_(operation),
      options_(options),
      deadline_(Deadline::after(options.timeout)) {
  record(inputs);
  if (communicator_ == nullptr) {
    throw BackendError(ErrorCode::kAborted,
                       fmt::format("{}, {}: this rank has left the group (destroy_process_group or shutdown)",
                                   group_->who(), operation_));
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
  record_->before(fmt::format("{}:{}", group_->profiled_as(), profile_title(options_.type, operation_)),
                  c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
}

void CollectiveCall::reject_text(const std::string& text) const {
  throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("{}, {}: {}", group_->who(), operation_, text));
}

void CollectiveCall::check(const Status& status) const {
  if (status.ok()) return;
  throw_status(status, fmt::format("{}, {} #{}", group_->who(), operation_, communicator_->sequence()));
}

const at::Tensor& CollectiveCall::only(const std::vector<at::Tensor>& tensors, const char* name) const {
  check_count(tensors.size(), 1, name);
  return tensors.front();
}

void CollectiveCall::check_count(std::size_t count, std::size_t expected, const char* name) const {
  if (count != expected) reject("`{}` must have {} tensor(s), found {}", name, expected, count);
}

void CollectiveCall::check_root(std::int64_t root) const {
  if (root < 0 || root >= world_size()) {
    reject("the root must be a rank of the group, 0 to {}, found {}", world_size() - 1, root);
  }
}

void CollectiveCall::check_same_dtype(const at::Tensor& a, const char* a_name, const at::Tensor& b,
                                      const char* b_name) const {
  if (a.scalar_type() == b.scalar_type()) return;
  reject("`{}` and `{}` must have the same dtype, found {} and {}", a_name, b_name, c10::toString(a.scalar_type()),
         c10::toString(b.scalar_type()));
}

void CollectiveCall::check_elements(const at::Tensor& tensor, const char* name, std::int64_t expected,
                                    const char* why) const {
  if (tensor.numel() == expected) return;
  reject("`{}` must have {} elements ({}), found {} in shape {}", name, expected, why, tensor.numel(),
         c10::str(tensor.sizes()));
}

void CollectiveCall::check_tensor(const at::Tensor& tensor, const char* name) const {
  if (!tensor.defined()) reject("`{}` is an undefined tensor", name);
  if (!tensor.is_cpu()) {
    reject("`{}` must be a CPU tensor for the lockstep engine, found one on {}; copy it with .cpu()", name,
           tensor.device().str());
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    reject("`{}` must be a dense tensor, found layout {}; convert it with .to_dense()", name,
           tensor.is_nested() ? std::string("Nested") : c10::str(tensor.layout()));
  }
}

void CollectiveCall::check_writable(const at::Tensor& tensor, const char* name) const {
  check_tensor(tensor, name);
  if (!is_plain_memory(tensor) && may_overlap_itself(tensor)) {
    reject(
        "`{}` receives data, but several of its elements share memory (shape {}, strides {}), as after expand(); use "
        "clone()",
        name, c10::str(tensor.sizes()), c10::str(tensor.strides()));
  }
}

void CollectiveCall::keep(const at::Tensor& tensor) {
  if (kept_ != nullptr) kept_->push_back(tensor);
}

comm::ConstPiece CollectiveCall::input(const at::Tensor& tensor, const char* name) {
  check_tensor(tensor, name);
  if (is_plain_memory(tensor)) {
    keep(tensor);
    return {tensor.const_data_ptr(), byte_size(tensor)};
  }
  const c10::AutoGradMode no_grad(false);
  at::Tensor temporary = make_temporary(tensor).copy_(tensor);
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
  at::Tensor temporary = make_temporary(tensor);
  keep(temporary);
  copies_.push_back({temporary, tensor});
  return {temporary.mutable_data_ptr(), byte_size(temporary)};
}

comm::Piece CollectiveCall::in_place(const at::Tensor& tensor, const char* name) {
  const comm::Piece piece = output(tensor, name);
  if (!is_plain_memory(tensor)) {
    const c10::AutoGradMode no_grad(false);
    copies_.back().temporary.copy_(tensor);
  }
  return piece;
}

CollectiveCall::Reduction CollectiveCall::reduction(const c10d::ReduceOp& op, at::ScalarType dtype) const {
  if (op.op_ >= c10d::ReduceOp::UNUSED) reject("{} is not a reduction", static_cast<int>(op.op_));
  const Reduction result{data_type(dtype), static_cast<comm::ReduceOp>(op.op_),
                         op.op_ == c10d::ReduceOp::PREMUL_SUM ? premul_factor(op) : 1.0};
  if (result.type == comm::DataType::kByte || !comm::is_supported(result.type, result.op)) {
    reject("{} is not defined for tensors of dtype {}", comm::to_string(result.op), c10::toString(dtype));
  }
  return result;
}

c10::intrusive_ptr<c10d::Work> CollectiveCall::work(std::vector<at::Tensor> outputs) {
  if (options_.blocking == Blocking::kYes) {
    copy_back(copies_);
    return c10::make_intrusive<LockstepWork>(rank(), options_.type, std::move(outputs));
  }
  LockstepWork::Pending pending{group_,    operation_,        std::move(operations_), std::move(copies_),
                                deadline_, std::move(record_)};
  return c10::make_intrusive<LockstepWork>(rank(), options_.type, std::move(outputs), std::move(pending));
}

}  // namespace lockstep
