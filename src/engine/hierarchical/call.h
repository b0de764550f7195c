// What the ranks of a group that spans machines tell one another before anything moves: a record of fixed size each,
// and, where sizes differ between ranks, a table of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/request.h"
#include "engine/core/roster.h"
#include "engine/local/control.h"

namespace lockstep::comm {

struct Call {
  Kind kind = Kind::kNone;
  DataType type = DataType::kByte;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t padding = 0;
  std::uint16_t root = 0;
  std::uint16_t list = 1;
  std::uint64_t count = 0;
  double factor = 1.0;
  std::uint64_t input_bytes = 0;   // of the input, or of each of a list; kUneven: they differ
  std::uint64_t output_bytes = 0;  // likewise
  static constexpr std::uint64_t kUneven = ~std::uint64_t{0};
  // A small input travels with the record, and nothing else has to.
  static constexpr std::size_t kPayloadBytes = 216;
  static_assert(Refusal::kReasonBytes <= kPayloadBytes);
  std::array<std::byte, kPayloadBytes> payload{};
};
static_assert(sizeof(Call) == 256);

Call make_call(const Request& request, int rank);

// Ok when all ranks asked for the same; else who asked for what. The same text on every rank. Sizes aside.
Status agreement(std::span<const Call> calls, const GroupNames& names, std::uint64_t sequence);

// If not, the ranks are out of step from here on.
bool lists_agree(std::span<const Call> calls);

// Whether the records alone show that all sizes fit: every piece that passes between two ranks has the same size.
bool are_even(std::span<const Call> calls);

// Whether the payloads hold everything.
bool is_carried(std::span<const Call> calls);

// What one rank sends to each other and expects from each, bytes.
struct SizeEntry {
  std::uint64_t sent = 0;
  std::uint64_t wanted = 0;
};
std::vector<SizeEntry> size_row(const Request& request, int rank, int world);
// `table[from * world + to]`. The same text on every rank.
Status check_sizes(std::span<const SizeEntry> table, int world, Kind kind, const GroupNames& names,
                   std::uint64_t sequence);

}  // namespace lockstep::comm
