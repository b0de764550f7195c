#include "request.h"

#include <fmt/format.h>

namespace lockstep::comm {
namespace {

template <typename Args>
Request reduction(Kind kind, const Args& args) {
  Request request;
  request.kind = kind;
  request.type = args.type;
  request.op = args.op;
  request.factor = args.factor;
  return request;
}

bool is_reduction(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

Status check_list(const Request& request, const char* what, std::size_t size, int world) {
  if (size == static_cast<std::size_t>(world)) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("{}: expected one {} per rank ({}), got {}", to_string(request.kind), what, world, size)};
}

}  // namespace

Request make_request(const AllReduce& args) {
  Request request = reduction(Kind::kAllReduce, args);
  const std::size_t bytes = args.count * size_of(args.type);
  request.count = args.count;
  request.input = {args.input, bytes};
  request.output = {args.output, bytes};
  return request;
}

Request make_request(const Reduce& args, int rank) {
  Request request = reduction(Kind::kReduce, args);
  const std::size_t bytes = args.count * size_of(args.type);
  request.count = args.count;
  request.root = args.root;
  request.input = {args.input, bytes};
  if (rank == args.root) request.output = {args.output, bytes};
  return request;
}

Request make_request(const Broadcast& args, int rank) {
  Request request;
  request.kind = Kind::kBroadcast;
  request.type = args.type;
  request.root = args.root;
  request.count = args.bytes;
  if (rank == args.root) {
    request.input = {args.data, args.bytes};
  } else {
    request.output = {args.data, args.bytes};
  }
  return request;
}

Request make_request(const AllGather& args) {
  Request request;
  request.kind = Kind::kAllGather;
  request.type = args.type;
  request.input = args.input;
  request.outputs = args.outputs;
  return request;
}

Request make_request(const Gather& args, int rank) {
  Request request;
  request.kind = Kind::kGather;
  request.type = args.type;
  request.root = args.root;
  request.input = args.input;
  if (rank == args.root) request.outputs = args.outputs;
  return request;
}

Request make_request(const Scatter& args, int rank) {
  Request request;
  request.kind = Kind::kScatter;
  request.type = args.type;
  request.root = args.root;
  request.output = args.output;
  if (rank == args.root) request.inputs = args.inputs;
  return request;
}

Request make_request(const ReduceScatter& args) {
  Request request = reduction(Kind::kReduceScatter, args);
  request.inputs = args.inputs;
  request.output = args.output;
  return request;
}

Request make_request(const AllToAll& args) {
  Request request;
  request.kind = Kind::kAllToAll;
  request.type = args.type;
  request.inputs = args.inputs;
  request.outputs = args.outputs;
  return request;
}

Request make_request(const Barrier&) {
  Request request;
  request.kind = Kind::kBarrier;
  return request;
}

Status validate(const Request& request, int rank, int world) {
  const char* name = to_string(request.kind);
  if (request.root < 0 || request.root >= world) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{}: root {} is not a rank of this group of {}", name, request.root, world)};
  }
  if (is_reduction(request.kind) && !is_supported(request.type, request.op)) {
    return {ErrorCode::kUnsupported,
            fmt::format("{}: {} is not defined for {}", name, to_string(request.op), to_string(request.type))};
  }
  const Kind kind = request.kind;
  const bool root = rank == request.root;
  if (kind == Kind::kReduceScatter && request.output.bytes % size_of(request.type) != 0) {
    return {ErrorCode::kInvalidArgument, fmt::format("{}: the output has {} bytes, which is no whole number of {}",
                                                     name, request.output.bytes, to_string(request.type))};
  }
  if (kind == Kind::kAllToAll || kind == Kind::kReduceScatter || (kind == Kind::kScatter && root)) {
    LOCKSTEP_RETURN_IF_ERROR(check_list(request, "input", request.inputs.size(), world));
  }
  if (kind == Kind::kAllToAll || kind == Kind::kAllGather || (kind == Kind::kGather && root)) {
    LOCKSTEP_RETURN_IF_ERROR(check_list(request, "output", request.outputs.size(), world));
  }
  return {};
}

}  // namespace lockstep::comm
