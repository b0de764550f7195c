#include "mpi/mpi_call.h"

#include <limits>
#include <numeric>

#include "c10d/backend/staging.h"
#include "c10d/backend/tensor_rules.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {

void* mpi_address(const at::Tensor& tensor) {
  static std::max_align_t nothing;
  return tensor.numel() == 0 ? static_cast<void*>(&nothing) : tensor.data_ptr();
}

MpiCall::MpiCall(const std::shared_ptr<MpiGroup>& group, const char* operation, int rank, const Options& options)
    : CallChecks(group->who(), operation, group->group_size()), rank_(rank), options_(options) {
  if (record_.isActive()) record_.before(operation);
  pending_.group = group;
  pending_.operation = operation;
  pending_.place = group->places().current();
  if (const Status health = group->health(); !health.ok()) {
    throw_status(health, fmt::format("{}, {}{}", who(), operation, place()));
  }
  if (!group->works().empty()) group->works().collect();
  pending_.sequence = group->next_sequence();
  pending_.deadline = Deadline::after(options.timeout);
  // Messages of the monitored barrier are of an unknown type.
  if (is_message(options.type) || options.type == c10d::OpType::UNKNOWN) return;
  const Status settled = group->refusals().settle(group->collectives(), pending_.deadline);
  if (!settled.ok()) fail(settled);
  collective_ = group->next_collective();
}

void check_movable(const CallChecks& checks, const at::Tensor& tensor, const char* name) {
  if (!tensor.is_quantized()) return;
  checks.reject("`{}` is quantized, which backend mpi does not move; send its int_repr()", name);
}

int mpi_count(const CallChecks& checks, std::int64_t elements) {
  if (elements > std::numeric_limits<int>::max()) {
    checks.reject("MPI moves up to {} elements a call, found {}; use smaller tensors, or backend lockstep",
                  std::numeric_limits<int>::max(), elements);
  }
  return static_cast<int>(elements);
}

at::Tensor MpiCall::input(const at::Tensor& tensor, const char* name) {
  check_readable(tensor, name);
  check_movable(*this, tensor, name);
  at::Tensor memory = tensor;
  if (!is_plain_memory(tensor) || outputs_.overlaps(tensor, nullptr, 0)) {
    memory = make_host_memory(tensor);
    copy_elements(memory, tensor);
  }
  pending_.kept.emplace_back(memory);
  return memory;
}

at::Tensor MpiCall::output(const at::Tensor& tensor, const char* name) {
  check_writable(tensor, name);
  check_movable(*this, tensor, name);
  at::Tensor memory = tensor;
  const bool apart = outputs_.add(tensor);
  if (!apart || !is_plain_memory(tensor)) {
    wait_for_device(tensor);
    memory = make_host_memory(tensor);
    pending_.finishers.push_back([memory, tensor] { copy_elements(tensor, memory); });
  }
  pending_.kept.emplace_back(memory);
  return memory;
}

at::Tensor MpiCall::in_place(const at::Tensor& tensor, const char* name) {
  at::Tensor memory = output(tensor, name);
  if (!memory.is_same(tensor)) copy_elements(memory, tensor);
  return memory;
}

namespace {

// One flat tensor for all; `parts` gets a view of it for each.
at::Tensor make_flat(const std::vector<at::Tensor>& tensors, std::vector<at::Tensor>& parts) {
  std::int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += tensor.numel();
  at::Tensor flat = at::empty({total}, at::TensorOptions(tensors.front().scalar_type()));
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
  return flat;
}

}  // namespace

at::Tensor MpiCall::flat_input(const std::vector<at::Tensor>& tensors, const char* name) {
  for (const at::Tensor& tensor : tensors) {
    check_readable(tensor, name);
    check_movable(*this, tensor, name);
    check_same_dtype(tensor, name, tensors.front(), name);
  }
  std::vector<at::Tensor> parts;
  at::Tensor flat = make_flat(tensors, parts);
  for (std::size_t i = 0; i < tensors.size(); ++i) copy_elements(parts[i], tensors[i]);
  pending_.kept.emplace_back(flat);
  return flat;
}

at::Tensor MpiCall::flat_output(const std::vector<at::Tensor>& tensors, const char* name) {
  for (const at::Tensor& tensor : tensors) {
    check_writable(tensor, name);
    check_movable(*this, tensor, name);
    check_same_dtype(tensor, name, tensors.front(), name);
    wait_for_device(tensor);
  }
  std::vector<at::Tensor> parts;
  at::Tensor flat = make_flat(tensors, parts);
  pending_.finishers.push_back([parts, tensors] {
    for (std::size_t i = 0; i < tensors.size(); ++i) copy_elements(tensors[i], parts[i]);
  });
  pending_.kept.emplace_back(flat);
  return flat;
}

MpiCall::Layout MpiCall::layout(const std::vector<std::int64_t>& elements) const {
  Layout result;
  std::int64_t offset = 0;
  for (const std::int64_t part : elements) {
    result.counts.push_back(count(part));
    result.offsets.push_back(count(offset));
    offset += part;
  }
  return result;
}

MpiCall::Layout MpiCall::layout(const std::vector<at::Tensor>& tensors) const {
  std::vector<std::int64_t> elements;
  elements.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) elements.push_back(tensor.numel());
  return layout(elements);
}

const MpiCall::Layout& MpiCall::keep(Layout layout) {
  auto kept = std::make_shared<Layout>(std::move(layout));
  pending_.layouts.push_back(kept);
  return *kept;
}

void MpiCall::follow_earlier_works() {
  pending_.earlier = pending_.group->works().before_a_barrier();
  if (pending_.earlier == nullptr || options_.async) return;
  for (const GroupWorkPtr& work : *pending_.earlier) work->finish_by(pending_.deadline);
}

void MpiCall::refuse(const std::exception& error) {
  if (collective_ == 0 || has_begun_) return;
  const std::string called = place().empty() ? "" : fmt::format(" (called{})", place());
  pending_.group->refusals().refuse(collective_, reason_to_refuse(error) + called);
}

void MpiCall::break_here(const std::exception& error) {
  if (group_size() == 1) return;
  pending_.group->break_with(Status(
      ErrorCode::kInvalidArgument, fmt::format("{} was refused on this rank only: {}", describe(), plain_text(error))));
}

void MpiCall::fail(const Status& status, bool left) {
  if (!left) pending_.group->break_with(status.with_context(describe()));
  // Earlier requests of a coalesced call are under way, and MPI may still use their memory.
  if (!pending_.requests.empty()) {
    MpiRuntime::of_process().keep_for_ever(std::move(pending_.kept), std::move(pending_.layouts));
  }
  throw_status(status, fmt::format("{}, {}", who(), describe()));
}

c10::intrusive_ptr<c10d::Work> MpiCall::work(std::vector<at::Tensor> outputs) {
  pending_.finishers.insert(pending_.finishers.begin(), arithmetic_.begin(), arithmetic_.end());
  const auto group = pending_.group;
  auto work = c10::make_intrusive<MpiWork>(rank_, options_.type, std::move(outputs), std::move(pending_));
  if (options_.async) {
    group->works().add(work);
  } else {
    work->wait(std::chrono::milliseconds(0));
  }
  return work;
}

}  // namespace lockstep
