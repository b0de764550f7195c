// What a caller asked for, in one form for every collective.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/call_place.h"
#include "lockstep/base/status.h"
#include "lockstep/engine/communicator.h"

namespace lockstep::comm {

// Which operation a rank calls.
enum class Kind : std::uint8_t {
  kNone,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSend,
  kReceive,
  kRefusal,  // this rank cannot take part; its input is the reason, as text
};
const char* to_string(Kind kind);

// A rank's last collective in one word: others read it while the rank writes it.
inline constexpr int kKindBits = 8;
inline std::uint64_t call_word(std::uint64_t sequence, Kind kind) {
  return sequence << kKindBits | static_cast<std::uint64_t>(kind);
}
inline std::uint64_t sequence_of(std::uint64_t call) {
  return call >> kKindBits;
}
inline Kind kind_of(std::uint64_t call) {
  return static_cast<Kind>(call & ((1U << kKindBits) - 1));
}

// Range: consecutive elements of a buffer, by their numbers.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;  // not part of it
  std::size_t size() const { return end - begin; }
};

// What a caller asked for, in one form for every collective.

// A request without its lists.
struct RequestTerms {
  Kind kind = Kind::kNone;
  DataType type = DataType::kByte;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
  int root = 0;
  int list = 1;           // how many collectives the caller's list has
  std::size_t count = 0;  // units (unit_of), the same on every rank; 0 where sizes may differ by rank
  ConstPiece input;       // the same for every receiver
  Piece output;           // one result
  CallPlace place;        // from where the rank calls; may differ between ranks
};

struct Request : RequestTerms {
  std::vector<ConstPiece> inputs;  // by receiver, instead of `input`
  std::vector<Piece> outputs;      // by sender, instead of `output`
};

// A request that refers to the caller's lists. Copying them would take longer than a small operation.
struct RequestView : RequestTerms {
  RequestView() = default;
  RequestView(const Request& request) : RequestTerms(request), inputs(request.inputs), outputs(request.outputs) {}
  Request copy() const { return {*this, {inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()}}; }

  std::span<const ConstPiece> inputs;
  std::span<const Piece> outputs;
};

inline constexpr int kLongestList = 65535;

// Bytes of one unit of `count`: an element, but one byte for a broadcast, whose type must only be the same on all
// ranks.
inline std::size_t unit_of(Kind kind, DataType type) {
  return kind == Kind::kBroadcast ? 1 : size_of(type);
}

// Compared bit by bit, so that not-a-number equals itself.
inline bool same_factor(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

// Whether ranks give several inputs; several outputs; either of them.
inline bool lists_inputs(Kind kind) {
  return kind == Kind::kScatter || kind == Kind::kReduceScatter || kind == Kind::kAllToAll;
}
inline bool lists_outputs(Kind kind) {
  return kind == Kind::kAllGather || kind == Kind::kGather || kind == Kind::kAllToAll;
}
inline bool has_lists(Kind kind) {
  return lists_inputs(kind) || lists_outputs(kind);
}

// Whether two posts or call records ask for the same. The count of operations with lists is not compared.
template <typename Record>
bool same_terms(const Record& a, const Record& b) {
  return a.kind == b.kind && a.type == b.type && a.op == b.op && a.root == b.root && a.list == b.list &&
         (a.count == b.count || has_lists(a.kind)) && same_factor(a.factor, b.factor);
}

// The request of `rank`.
RequestView view_of(const AllReduce& args, int rank);
RequestView view_of(const Reduce& args, int rank);
RequestView view_of(const Broadcast& args, int rank);
RequestView view_of(const AllGather& args, int rank);
RequestView view_of(const Gather& args, int rank);
RequestView view_of(const Scatter& args, int rank);
RequestView view_of(const ReduceScatter& args, int rank);
RequestView view_of(const AllToAll& args, int rank);
RequestView view_of(const Barrier& args, int rank);
RequestView view_of(const Refusal& args, int rank);

// `rank` matters only for operations with a root.
template <typename Args>
Request make_request(const Args& args, int rank = 0) {
  return view_of(args, rank).copy();
}

// The common size of all pieces that pass between two ranks, if they have one as far as this rank can tell. For
// all_reduce and reduce: the size of an input.
std::optional<std::size_t> even_piece(const RequestView& request);

// Finds the mistakes that can be seen without the other ranks.
Status validate(const RequestView& request, int rank, int group_size);

}  // namespace lockstep::comm
