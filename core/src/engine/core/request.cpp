#include "engine/core/request.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::comm {

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kNone: return "nothing";
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kReduce: return "reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kAllGather: return "all_gather";
    case Kind::kGather: return "gather";
    case Kind::kScatter: return "scatter";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kAllToAll: return "all_to_all";
    case Kind::kBarrier: return "barrier";
    case Kind::kSend: return "send";
    case Kind::kReceive: return "recv";
    case Kind::kRefusal: return "what it could not take part in";
  }
  return "unknown";
}

namespace {

// The request with all fields of `args` that have the same name and type there.
template <typename Args>
RequestView request_of(Kind kind, const Args& args) {
  RequestView request;
  request.kind = kind;
  if constexpr (requires { args.type; }) request.type = args.type;
  if constexpr (requires { args.op; }) request.op = args.op;
  if constexpr (requires { args.factor; }) request.factor = args.factor;
  if constexpr (requires { args.root; }) request.root = args.root;
  if constexpr (requires { args.list; }) request.list = args.list;
  if constexpr (requires { args.count; }) request.count = args.count;
  if constexpr (requires { request.input = args.input; }) request.input = args.input;
  if constexpr (requires { request.output = args.output; }) request.output = args.output;
  if constexpr (requires { args.inputs; }) request.inputs = args.inputs;
  if constexpr (requires { args.outputs; }) request.outputs = args.outputs;
  return request;
}

bool is_reduction(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

Status check_list(const RequestView& request, const char* what, std::size_t size, int group_size) {
  if (size == static_cast<std::size_t>(group_size)) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("{}: expected one {} per rank ({}), got {}", to_string(request.kind), what, group_size, size)};
}

}  // namespace

RequestView view_of(const AllReduce& args, int) {
  RequestView request = request_of(Kind::kAllReduce, args);
  const std::size_t bytes = args.count * size_of(args.type);
  request.input = {args.input, bytes};
  request.output = {args.output, bytes};
  return request;
}

RequestView view_of(const Reduce& args, int rank) {
  RequestView request = request_of(Kind::kReduce, args);
  const std::size_t bytes = args.count * size_of(args.type);
  request.input = {args.input, bytes};
  if (rank == args.root) request.output = {args.output, bytes};
  return request;
}

RequestView view_of(const Broadcast& args, int rank) {
  RequestView request = request_of(Kind::kBroadcast, args);
  request.count = args.bytes;
  if (rank == args.root) {
    request.input = {args.data, args.bytes};
  } else {
    request.output = {args.data, args.bytes};
  }
  return request;
}

RequestView view_of(const Gather& args, int rank) {
  RequestView request = request_of(Kind::kGather, args);
  if (rank != args.root) request.outputs = {};
  return request;
}

RequestView view_of(const Scatter& args, int rank) {
  RequestView request = request_of(Kind::kScatter, args);
  if (rank != args.root) request.inputs = {};
  return request;
}

RequestView view_of(const AllGather& args, int) {
  return request_of(Kind::kAllGather, args);
}
RequestView view_of(const ReduceScatter& args, int) {
  return request_of(Kind::kReduceScatter, args);
}
RequestView view_of(const AllToAll& args, int) {
  return request_of(Kind::kAllToAll, args);
}
RequestView view_of(const Barrier& args, int) {
  return request_of(Kind::kBarrier, args);
}

// The reason is cut so that every engine can carry it with the request.
RequestView view_of(const Refusal& args, int) {
  RequestView request = request_of(Kind::kRefusal, args);
  const std::string_view reason = args.reason.empty() ? "it did not say why" : args.reason;
  request.input = {reason.data(), std::min(reason.size(), Refusal::kReasonBytes)};
  return request;
}

std::optional<std::size_t> even_piece(const RequestView& request) {
  const auto all = [](const auto& pieces, std::size_t bytes) {
    return std::all_of(pieces.begin(), pieces.end(), [&](const auto& piece) { return piece.bytes == bytes; });
  };
  std::size_t bytes = request.input.bytes;
  switch (request.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce: return bytes;
    case Kind::kBroadcast: return request.count;
    case Kind::kScatter:
    case Kind::kReduceScatter: bytes = request.output.bytes; break;
    case Kind::kAllToAll: bytes = request.inputs[0].bytes; break;
    default: break;
  }
  if (all(request.inputs, bytes) && all(request.outputs, bytes)) return bytes;
  return std::nullopt;
}

Status validate(const RequestView& request, int rank, int group_size) {
  const char* name = to_string(request.kind);
  if (request.root < 0 || request.root >= group_size) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{}: root {} is not a rank of this group of {}", name, request.root, group_size)};
  }
  if (is_reduction(request.kind) && !is_supported(request.type, request.op)) {
    return {ErrorCode::kUnsupported,
            fmt::format("{}: {} is not defined for {}", name, to_string(request.op), to_string(request.type))};
  }
  if (request.list < 1 || request.list > kLongestList) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{}: a list has 1 to {} collectives, got {}", name, kLongestList, request.list)};
  }
  const Kind kind = request.kind;
  const bool root = rank == request.root;
  if (kind == Kind::kReduceScatter && request.output.bytes % size_of(request.type) != 0) {
    return {ErrorCode::kInvalidArgument, fmt::format("{}: the output has {} bytes, which is no whole number of {}",
                                                     name, request.output.bytes, to_string(request.type))};
  }
  if (kind == Kind::kAllToAll || kind == Kind::kReduceScatter || (kind == Kind::kScatter && root)) {
    LOCKSTEP_RETURN_IF_ERROR(check_list(request, "input", request.inputs.size(), group_size));
  }
  if (kind == Kind::kAllToAll || kind == Kind::kAllGather || (kind == Kind::kGather && root)) {
    LOCKSTEP_RETURN_IF_ERROR(check_list(request, "output", request.outputs.size(), group_size));
  }
  return {};
}

}  // namespace lockstep::comm
