// What a caller asked for, in one form for every collective.
#pragma once

#include <cstddef>
#include <vector>

#include "control.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

struct Request {
  Kind kind = Kind::kNone;
  DataType type = DataType::kByte;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
  int root = 0;
  std::size_t count = 0;  // of units (unit_of) that every rank must name alike; 0 where sizes may differ by rank
  ConstPiece input;       // the same for every receiver
  Piece output;           // one result
  std::vector<ConstPiece> inputs;  // by receiver, instead of `input`
  std::vector<Piece> outputs;      // by sender, instead of `output`
};

// Bytes of what `count` counts: elements, but bytes of a broadcast, whose type only has to agree.
inline std::size_t unit_of(Kind kind, DataType type) {
  return kind == Kind::kBroadcast ? 1 : size_of(type);
}

Request make_request(const AllReduce& args);
Request make_request(const Reduce& args, int rank);
Request make_request(const Broadcast& args, int rank);
Request make_request(const AllGather& args);
Request make_request(const Gather& args, int rank);
Request make_request(const Scatter& args, int rank);
Request make_request(const ReduceScatter& args);
Request make_request(const AllToAll& args);
Request make_request(const Barrier& args);

// What can be seen to be wrong without asking the other ranks.
Status validate(const Request& request, int rank, int world);

}  // namespace lockstep::comm
