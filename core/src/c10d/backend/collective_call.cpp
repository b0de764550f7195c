#include "c10d/backend/collective_call.h"

#include "c10d/backend/group_errors.h"
#include "c10d/backend/recorded_place.h"

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

static_assert(static_cast<int>(flight::Op::kBarrier) == static_cast<int>(c10d::OpType::BARRIER) &&
              static_cast<int>(flight::Op::kReduceScatterTensor) ==
                  static_cast<int>(c10d::OpType::_REDUCE_SCATTER_BASE));

// Some operations share a type.
flight::Op recorded_op(c10d::OpType type, const char* operation) {
  if (type == c10d::OpType::COALESCED) {
    return operation[0] == 'r' ? flight::Op::kReduceScatterTensorCoalesced : flight::Op::kAllGatherIntoTensorCoalesced;
  }
  if (type == c10d::OpType::BARRIER && operation[0] == 'm') return flight::Op::kMonitoredBarrier;
  return static_cast<flight::Op>(type);
}

}  // namespace

CollectiveCall::CollectiveCall(const std::shared_ptr<GroupCore>& group, const char* operation,
                               const CallOptions& options, at::TensorList inputs)
    : CallChecks(group->who(), operation, group->group_size()),
      group_(group),
      communicator_(group_->communicator()),
      options_(options),
      deadline_(Deadline::after(options.timeout)) {
  noted_.op = recorded_op(options_.type, operation);
  record(inputs);
  if (communicator_ == nullptr) {
    const Status reason = group->reason_left();
    throw_status(reason.ok() ? left_group() : reason, fmt::format("{}, {}", who(), operation));
  }
  if (!group_->works().empty()) group_->works().collect();
  if (options_.blocking == Blocking::kNo) kept_ = std::make_shared<std::vector<HeldMemory>>();
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

void CollectiveCall::begin_record() {
  noted_.waits = options_.blocking == Blocking::kYes;
  noted_.peer = options_.peer;
  noted_.number = is_message(options_.type) ? static_cast<std::uint64_t>(options_.tag) : communicator_->sequence() + 1;
  record_place(group_->record(), noted_);
  // The deadline was made from the time of the call.
  recorded_ =
      group_->record().begin(noted_, deadline_.is_never() ? flight::Clock::now() : deadline_.when() - options_.timeout);
}

void CollectiveCall::check(const Status& status, std::uint64_t sequence) const {
  if (status.ok()) return;
  // Messages have no sequence number.
  group_->fail(status, operation(), is_message(options_.type) ? 0 : sequence);
}

void CollectiveCall::refuse(const std::exception& error, std::size_t count) {
  const std::string reason = reason_to_refuse(error);
  // The tensors may be counted in part only.
  noted_.op = flight::Op::kOther;
  begin_record();
  recorded_.end(flight::Outcome::kFailed);
  for (std::size_t i = 0; i < count; ++i) {
    // A broken group need not be told.
    Result<comm::Operation> refusal = communicator_->start(comm::Refusal{reason, static_cast<int>(count)});
    if (!refusal.ok()) return;
    group_->keep_refusal(std::move(refusal).value());
  }
}

void CollectiveCall::follow_earlier_works() {
  if (group_->works().empty()) return;
  earlier_ = group_->works().before_a_barrier();
  if (earlier_ == nullptr || options_.blocking == Blocking::kNo) return;
  for (const GroupWorkPtr& work : *earlier_) work->finish_by(deadline_);
}

void CollectiveCall::keep(const at::Tensor& tensor) {
  if (kept_ != nullptr) kept_->emplace_back(tensor);
}

at::Tensor CollectiveCall::temporary_for(const at::Tensor& tensor) {
  at::Tensor temporary = make_temporary(tensor);
  keep(temporary);
  if (kept_ == nullptr) temporaries_.push_back(temporary);
  return temporary;
}

comm::Piece CollectiveCall::output(const at::Tensor& tensor, const char* name) {
  check_writable(tensor, name);
  count(tensor, noted_.output);
  const bool apart = outputs_.add(tensor);
  if (apart && is_plain_memory(tensor)) {
    keep(tensor);
    return {tensor.mutable_data_ptr(), byte_size(tensor)};
  }
  wait_for_device(tensor);
  const at::Tensor temporary = temporary_for(tensor);
  copies_.push_back({temporary, tensor});
  return {temporary.mutable_data_ptr(), byte_size(temporary)};
}

comm::ConstPiece CollectiveCall::input(const at::Tensor& tensor, const char* name, const comm::Piece& own,
                                       std::size_t own_at) {
  check_readable(tensor, name);
  count(tensor, noted_.input);
  if (is_plain_memory(tensor)) {
    const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
    const bool in_place = data + own_at == own.data;
    const bool is_own = in_place && byte_size(tensor) == own.bytes;
    if (is_own || !outputs_.overlaps(tensor, own.data, in_place ? own.bytes : 0)) {
      keep(tensor);
      return {data, byte_size(tensor)};
    }
  }
  const at::Tensor temporary = temporary_for(tensor);
  copy_elements(temporary, tensor);
  return {temporary.const_data_ptr(), byte_size(temporary)};
}

comm::Piece CollectiveCall::in_place(const at::Tensor& tensor, const char* name) {
  const std::size_t copies = copies_.size();
  const comm::Piece piece = output(tensor, name);
  if (copies_.size() > copies) copy_elements(copies_.back().temporary, tensor);
  count(tensor, noted_.input);
  return piece;
}

at::Tensor CollectiveCall::make_operand(const at::Tensor& like, std::int64_t elements) {
  return temporary_for(at::empty({1}, at::TensorOptions(like.scalar_type())).expand({elements}));
}

void CollectiveCall::copy_later(const at::Tensor& from, const at::Tensor& destination, const char* name) {
  check_writable(destination, name);
  wait_for_device(destination);
  copies_.push_back({from, destination});
}

c10::intrusive_ptr<c10d::Work> CollectiveCall::work(std::vector<at::Tensor> outputs) {
  if (options_.blocking == Blocking::kYes) {
    copy_back(copies_);
    if (earlier_ != nullptr) check(group_->works().take_lost_error(*earlier_), communicator_->sequence());
    return c10::make_intrusive<LockstepWork>(rank(), options_.type, std::move(outputs));
  }
  LockstepWork::Pending pending{group_,    operation(),        std::move(operations_), std::move(copies_),
                                deadline_, std::move(record_), std::move(earlier_)};
  auto work = c10::make_intrusive<LockstepWork>(rank(), options_.type, std::move(outputs), std::move(pending));
  if (recorded_.is_recorded()) work->record_as(recorded_);
  group_->works().add(work);
  return work;
}

}  // namespace lockstep
