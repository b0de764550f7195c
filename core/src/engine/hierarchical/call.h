// Call: what each rank of a group that spans machines tells the others before data moves: a record of fixed size. If
// sizes differ between ranks, a table of sizes follows.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/call_place.h"
#include "engine/core/request.h"
#include "engine/local/control.h"
#include "store/membership/roster.h"

namespace lockstep::comm {

// The texts of a CallPlace, for other machines.
struct SentPlace {
  SentPlace() = default;
  explicit SentPlace(CallPlace place) : site(text_of(place.site)), label(text_of(place.label)) {}
  bool is_known() const { return site[0] != 0 || label[0] != 0; }
  // " at src/train.cpp:41"; empty: not known.
  std::string describe() const { return describe_place(site.data(), label.data()); }

  PlaceText site{};
  PlaceText label{};
};

struct Call {
  Kind kind = Kind::kNone;
  DataType type = DataType::kByte;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t padding = 0;
  std::uint16_t root = 0;
  std::uint16_t list = 1;
  std::uint64_t count = 0;
  double factor = 1.0;
  std::uint64_t input_bytes = 0;   // of the input, or of each input in a list; kUneven: they differ
  std::uint64_t output_bytes = 0;  // the same of the outputs
  static constexpr std::uint64_t kUneven = ~std::uint64_t{0};
  SentPlace place;  // from where the rank calls
  // A small input travels inside the record. If all do, no other message is needed.
  static constexpr std::size_t kPayloadBytes = 216;
  static_assert(Refusal::kReasonBytes <= kPayloadBytes);
  std::array<std::byte, kPayloadBytes> payload{};
};
static_assert(sizeof(Call) == 384);

Call make_call(const Request& request, int rank);

// Ok if all ranks asked for the same, apart from sizes; else which rank asked for what. The same text on every rank.
Status agreement(std::span<const Call> calls, const GroupNames& names, std::uint64_t sequence);

// If they differ, the ranks no longer make the same sequence of calls.
bool lists_agree(std::span<const Call> calls);

// Whether the records alone show that all sizes match: every piece that passes between two ranks has the same size.
bool are_even(std::span<const Call> calls);

// Whether the payloads hold all data of the operation.
bool is_carried(std::span<const Call> calls);

// How many bytes one rank sends to another rank and expects from it.
struct SizeEntry {
  std::uint64_t sent = 0;
  std::uint64_t wanted = 0;
};
std::vector<SizeEntry> size_row(const Request& request, int rank, int group_size);
// `table[rank * group_size + other]`: what `rank` sends to `other` and expects from it. The same error on every rank.
Status check_sizes(std::span<const SizeEntry> table, std::span<const Call> calls, const GroupNames& names,
                   std::uint64_t sequence);

}  // namespace lockstep::comm
