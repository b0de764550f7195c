#include "hierarchical_operation.h"

#include <cstddef>
#include <cstring>
#include <iterator>

#include "engine/core/error_text.h"
#include "lockstep/reduce/reduce.h"

namespace lockstep::comm {
namespace {

// Calls visit(T{}), T being the type of the elements, for integers of up to 32 bits.
template <typename Visit>
void visit_integer(DataType type, const Visit& visit) {
  switch (type) {
    case DataType::kUInt8: return visit(std::uint8_t{});
    case DataType::kInt8: return visit(std::int8_t{});
    case DataType::kUInt16: return visit(std::uint16_t{});
    case DataType::kInt16: return visit(std::int16_t{});
    case DataType::kUInt32: return visit(std::uint32_t{});
    case DataType::kInt32: return visit(std::int32_t{});
    default: return;
  }
}

void widen(DataType type, const ConstPiece& from, std::int64_t* to) {
  visit_integer(type, [&](auto value) {
    const auto* bytes = static_cast<const std::byte*>(from.data);
    for (std::size_t at = 0; at < from.bytes; at += sizeof value) {
      std::memcpy(&value, bytes + at, sizeof value);
      *to++ = value;  // NOLINT(bugprone-signed-char-misuse): a number, not a character
    }
  });
}

void narrow(DataType type, const std::int64_t* from, const Piece& to) {
  visit_integer(type, [&](auto value) {
    auto* bytes = static_cast<std::byte*>(to.data);
    for (std::size_t at = 0; at < to.bytes; at += sizeof value) {
      value = static_cast<decltype(value)>(*from++);
      std::memcpy(bytes + at, &value, sizeof value);
    }
  });
}

}  // namespace

bool IntegerMean::is_needed(const Request& request) {
  const bool reduces =
      request.kind == Kind::kAllReduce || request.kind == Kind::kReduce || request.kind == Kind::kReduceScatter;
  bool narrow_integers = false;
  visit_integer(request.type, [&](auto) { narrow_integers = true; });
  return reduces && request.op == ReduceOp::kAvg && narrow_integers;
}

IntegerMean::IntegerMean(const Request& request, std::span<SizeEntry> sizes) : widened_(request) {
  const std::size_t element = size_of(request.type);
  const std::size_t growth = sizeof(std::int64_t) / element;
  widened_.type = DataType::kInt64;
  std::size_t elements = request.input.bytes / element;
  for (const ConstPiece& piece : request.inputs) elements += piece.bytes / element;
  inputs_.resize(elements);
  output_.resize(request.output.bytes / element);
  std::int64_t* place = inputs_.data();
  const auto copy = [&](const ConstPiece& piece) {
    widen(request.type, piece, place);
    const ConstPiece copied{place, piece.bytes * growth};
    place += piece.bytes / element;
    return copied;
  };
  widened_.input = copy(request.input);
  for (ConstPiece& piece : widened_.inputs) piece = copy(piece);
  widened_.output = {output_.data(), request.output.bytes * growth};
  for (SizeEntry& size : sizes) size = {size.sent * growth, size.wanted * growth};
}

void IntegerMean::finish(const Request& request) const {
  narrow(request.type, output_.data(), request.output);
}

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
  status = sized ? check_sizes(table, calls, context.names, sequence) : agreement(calls, context.names, sequence);
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
  for (const auto& step : planned_steps) bytes_between += step->bytes();
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
