#include "hierarchical_operation.h"

#include <cstring>
#include <iterator>

#include "engine/core/error_text.h"
#include "lockstep/reduce/reduce.h"

namespace lockstep::comm {

HierarchicalOperation::HierarchicalOperation(const GroupContext& context, Request its_request,
                                             std::uint64_t its_sequence)
    : request(std::move(its_request)),
      sequence(its_sequence),
      call(make_call(request, context.rank)),
      calls(context.size()) {
  steps.push_back(std::make_unique<MeetingStep>(context, reinterpret_cast<const std::byte*>(&call),
                                                reinterpret_cast<std::byte*>(calls.data()), sizeof(Call)));
}

std::string HierarchicalOperation::describe(const GroupContext& context) const {
  return comm::describe(request.kind, sequence, context.names.group);
}

// All records, or all tables of sizes, are here. They are the same on every rank, so every rank decides the same.
bool HierarchicalOperation::finish_meeting(const GroupContext& context) {
  const bool sized = !table.empty();
  status = sized ? check_sizes(table, context.size(), request.kind, context.names, sequence)
                 : agreement(calls, context.names, sequence);
  if (!sized && !lists_agree(calls)) return false;
  if (!status.ok()) {
    planned = true;
  } else if (!sized && is_carried(calls)) {
    apply_payloads(context.rank);
    planned = true;
  } else if (!sized && !are_even(calls)) {
    row = size_row(request, context.rank, context.size());
    table.resize(row.size() * context.size());
    steps.push_back(std::make_unique<MeetingStep>(context, reinterpret_cast<const std::byte*>(row.data()),
                                                  reinterpret_cast<std::byte*>(table.data()),
                                                  row.size() * sizeof(SizeEntry)));
  } else {
    plan(context);
  }
  return true;
}

void HierarchicalOperation::plan(const GroupContext& context) {
  if (IntegerMean::is_needed(request)) mean = std::make_unique<IntegerMean>(request, table);
  auto planned_steps = plan_steps({context, mean ? mean->request() : request, table});
  std::move(planned_steps.begin(), planned_steps.end(), std::back_inserter(steps));
  planned = true;
}

void HierarchicalOperation::apply_payloads(int rank) const {
  const auto place = [&](const Piece& piece, int from) {
    const std::byte* data = calls[from].payload.data();
    if (piece.bytes > 0 && piece.data != data) std::memmove(piece.data, data, piece.bytes);
  };
  if (request.kind == Kind::kAllReduce || (request.kind == Kind::kReduce && rank == request.root)) {
    std::vector<const std::byte*> inputs;
    inputs.reserve(calls.size());
    for (const Call& one : calls) inputs.push_back(one.payload.data());
    auto* output = static_cast<std::byte*>(request.output.data);
    reduce({request.type, request.op, request.factor}, inputs, std::span(&output, 1), request.count);
  } else if (request.kind == Kind::kBroadcast) {
    place(request.output, request.root);
  }
  for (std::size_t from = 0; from < request.outputs.size(); ++from)
    place(request.outputs[from], static_cast<int>(from));
}

void HierarchicalOperation::finish(Status its_status) {
  status = std::move(its_status);
  if (mean && status.ok()) mean->finish(request);
  mean.reset();
  keep_alive.reset();
  over.store(true, std::memory_order_release);
}

}  // namespace lockstep::comm
