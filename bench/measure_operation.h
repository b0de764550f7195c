// The measurement of the programs for collectives, ours and MPI's. Each rank rewrites its input before each call, then
// the ranks meet, only the call is timed, and after a barrier the result is checked. That barrier keeps a rank's check
// from taking a core that others need for the call. Standard library and Linux only, like measure.h.
//
// The time of a call is that of the slowest rank: the root of a broadcast may return before the others have received
// anything. For send_recv it is half of rank 0's round trip.
//
// A size is that of a rank's larger buffer: the whole buffer for broadcast, reduce and send_recv; all inputs of a rank
// for reduce_scatter, all_to_all and scatter; the gathered result for all_gather and gather.
#pragma once

#include <algorithm>
#include <cstring>

#include "measure.h"

namespace lockstep::bench {

enum class Kind { kBroadcast, kReduce, kAllGather, kGather, kScatter, kReduceScatter, kAllToAll, kSendReceive };

inline Kind parse_kind(const std::string& name) {
  constexpr std::string_view kNames[] = {"broadcast", "reduce",         "all_gather", "gather",
                                         "scatter",   "reduce_scatter", "all_to_all", "send_recv"};
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<Kind>(i);
  }
  die("--memory", "expected KIND:OPERATION with a known operation, found '" + name + "'");
}

// Buffers of one size, and their contents before and after a call.
struct Buffers {
  Kind kind;
  int rank;
  int world;
  std::size_t share;  // floats per rank
  std::span<float> whole;
  std::span<float> part;
  std::span<float> other;  // same size as whole

  static bool is_shared_out(Kind kind) {
    return kind != Kind::kBroadcast && kind != Kind::kReduce && kind != Kind::kSendReceive;
  }
  std::span<float> input() const { return kind == Kind::kAllGather || kind == Kind::kGather ? part : whole; }

  void fill(int value) const {
    for (float& number : input()) number = float(value + rank);
  }

  bool right(int value) const {
    const auto all = [](std::span<const float> data, float expected) {
      return std::all_of(data.begin(), data.end(), [&](float number) { return number == expected; });
    };
    const auto by_rank = [&](std::span<const float> data) {
      bool well = true;
      for (int r = 0; r < world; ++r) well = well && all(data.subspan(r * share, share), float(value + r));
      return well;
    };
    const int sum_of_ranks = world * (world - 1) / 2;
    const auto sum = float(world * value + sum_of_ranks);
    switch (kind) {
      case Kind::kBroadcast: return all(whole, float(value));
      case Kind::kReduce: return rank != 0 || all(other, sum);
      case Kind::kAllGather: return by_rank(whole);
      case Kind::kGather: return rank != 0 || by_rank(whole);
      case Kind::kScatter: return all(part, float(value));
      case Kind::kReduceScatter: return all(part, sum);
      case Kind::kAllToAll: return by_rank(other);
      case Kind::kSendReceive: return rank > 1 || all(other, float(value + 1 - rank));
    }
    return false;
  }
};

// `allocate(bytes)` returns an owner with get(). `longest(seconds)` takes the maximum over the ranks in place.
// `barrier()`, `run(buffers)` and `longest(seconds)` end the program if they fail.
template <typename Allocate, typename Barrier, typename Longest, typename Run>
void measure_operation(const Options& options, const std::string& operation, int rank, int world, Allocate allocate,
                       Barrier barrier, Longest longest, Run run) {
  constexpr int kWarmUp = 3;
  const Kind kind = parse_kind(operation);
  Report report(options.output, rank);
  Meeting meeting(options.output, rank, world);
  for (const Step& step : options.plan) {
    const std::size_t floats = std::max<std::size_t>(1, step.bytes / sizeof(float));
    const std::size_t share = Buffers::is_shared_out(kind) ? std::max<std::size_t>(1, floats / world) : floats;
    const std::size_t size = Buffers::is_shared_out(kind) ? share * world : floats;
    auto whole = allocate(size * sizeof(float));
    auto part = allocate(share * sizeof(float));
    auto other = allocate(size * sizeof(float));
    const Buffers buffers{kind, rank, world, share, {whole.get(), size}, {part.get(), share}, {other.get(), size}};
    std::vector<double> seconds;
    for (int repetition = -kWarmUp; repetition < step.repetitions; ++repetition) {
      const int value = (repetition + kWarmUp) % 64;
      buffers.fill(value);
      barrier();
      meeting.meet();
      const double start = now();
      run(buffers);
      const double end = now();
      barrier();
      if (repetition >= 0) seconds.push_back((end - start) / (kind == Kind::kSendReceive ? 2 : 1));
      if (!buffers.right(value)) {
        die(operation, "rank " + std::to_string(rank) + ": wrong result of " + std::to_string(step.bytes) + " bytes");
      }
    }
    if (kind != Kind::kSendReceive) longest(std::span(seconds));
    report.add(step.bytes, seconds);
  }
}

// --memory KIND:OPERATION
inline std::string operation_of(const Options& options) {
  const std::size_t colon = options.memory.find(':');
  return colon == std::string::npos ? options.memory : options.memory.substr(colon + 1);
}

}  // namespace lockstep::bench
