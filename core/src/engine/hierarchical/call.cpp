#include "call.h"

#include <algorithm>
#include <cstring>

#include "engine/core/error_text.h"

namespace lockstep::comm {
namespace {

template <typename P>
std::uint64_t common_size(const std::vector<P>& pieces) {
  if (pieces.empty()) return 0;
  const bool even =
      std::all_of(pieces.begin(), pieces.end(), [&](const P& piece) { return piece.bytes == pieces.front().bytes; });
  return even ? pieces.front().bytes : Call::kUneven;
}

bool is_sized_by_count(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kBroadcast || kind == Kind::kBarrier;
}

}  // namespace

Call make_call(const Request& request, int rank) {
  Call call;
  call.kind = request.kind;
  call.type = request.type;
  call.op = request.op;
  call.root = static_cast<std::uint16_t>(request.root);
  call.list = static_cast<std::uint16_t>(request.list);
  call.count = request.count;
  call.factor = request.factor;
  call.place = SentPlace(request.place);
  call.input_bytes = request.inputs.empty() ? request.input.bytes : common_size(request.inputs);
  call.output_bytes = request.outputs.empty() ? request.output.bytes : common_size(request.outputs);
  const ConstPiece& input = request.input;
  if (input.bytes > 0 && input.bytes <= Call::kPayloadBytes) std::memcpy(call.payload.data(), input.data, input.bytes);
  return call;
}

namespace {

// "called all_reduce of 10 float32 (sum)"
std::string describe(const Call& call, const Roster& ranks) {
  if (call.kind == Kind::kRefusal)
    return describe_refusal(call.payload.data(), call.input_bytes, call.place.describe());
  return "called " + describe(terms_of(call), ranks) + call.place.describe();
}

}  // namespace

Status agreement(std::span<const Call> calls, const GroupNames& names, std::uint64_t sequence) {
  const bool agreed =
      calls.front().kind != Kind::kRefusal &&
      std::all_of(calls.begin(), calls.end(), [&](const Call& call) { return same_terms(call, calls.front()); });
  if (agreed) return {};
  std::vector<std::string> texts;
  for (const Call& call : calls) texts.push_back(describe(call, names.ranks));
  return disagreement(names, sequence, texts);
}

bool lists_agree(std::span<const Call> calls) {
  return std::all_of(calls.begin(), calls.end(), [&](const Call& call) { return call.list == calls.front().list; });
}

bool are_even(std::span<const Call> calls) {
  const Call& first = calls.front();
  if (is_sized_by_count(first.kind)) return true;
  const Call& root = calls[first.root];
  const auto every = [&](std::uint64_t bytes, bool inputs, bool outputs) {
    if (bytes == Call::kUneven) return false;
    return std::all_of(calls.begin(), calls.end(), [&](const Call& call) {
      return (!inputs || call.input_bytes == bytes) && (!outputs || call.output_bytes == bytes);
    });
  };
  switch (first.kind) {
    case Kind::kGather: return every(root.output_bytes, true, false);
    case Kind::kScatter: return every(root.input_bytes, false, true);
    default: return every(first.input_bytes, true, true);
  }
}

bool is_carried(std::span<const Call> calls) {
  const Call& first = calls.front();
  switch (first.kind) {
    case Kind::kBarrier: return true;
    case Kind::kAllReduce:
    case Kind::kReduce:
    case Kind::kBroadcast: return first.count * unit_of(first.kind, first.type) <= Call::kPayloadBytes;
    case Kind::kAllGather:
    case Kind::kGather: return are_even(calls) && first.input_bytes <= Call::kPayloadBytes;
    default: return false;
  }
}

std::vector<SizeEntry> size_row(const Request& request, int rank, int group_size) {
  std::vector<SizeEntry> row(group_size);
  const bool root = rank == request.root;
  for (int other = 0; other < group_size; ++other) {
    SizeEntry& entry = row[other];
    switch (request.kind) {
      case Kind::kAllGather: entry = {request.input.bytes, request.outputs[other].bytes}; break;
      case Kind::kGather:
        if (other == request.root) entry.sent = request.input.bytes;
        if (root) entry.wanted = request.outputs[other].bytes;
        break;
      case Kind::kScatter:
        if (root) entry.sent = request.inputs[other].bytes;
        if (other == request.root) entry.wanted = request.output.bytes;
        break;
      case Kind::kReduceScatter: entry = {request.inputs[other].bytes, request.output.bytes}; break;
      case Kind::kAllToAll: entry = {request.inputs[other].bytes, request.outputs[other].bytes}; break;
      default: break;
    }
  }
  return row;
}

Status check_sizes(std::span<const SizeEntry> table, std::span<const Call> calls, const GroupNames& names,
                   std::uint64_t sequence) {
  const int group_size = static_cast<int>(calls.size());
  for (int to = 0; to < group_size; ++to) {
    for (int from = 0; from < group_size; ++from) {
      const std::uint64_t sent = table[std::size_t(from) * group_size + to].sent;
      const std::uint64_t wanted = table[std::size_t(to) * group_size + from].wanted;
      if (sent == wanted) continue;
      return disagreement(names, sequence, calls.front().kind,
                          {from, to, sent, wanted, calls[from].place.describe(), calls[to].place.describe()});
    }
  }
  return {};
}

}  // namespace lockstep::comm
