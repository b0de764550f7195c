// What is wrong with a job, in words, from the recorders of its ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flight/record.h"

namespace lockstep::flight {

// How long an operation may take before somebody is said to wait in it. In a dump every operation counts.
inline constexpr std::uint64_t kPatience = 1'000'000'000;

// One paragraph for each thing that is wrong; empty: nothing is. What happens only now is said last.
std::vector<std::string> findings(std::span<const RankRecord> records);

// A table of the ranks and the findings, for a terminal. Records are sorted by rank.
std::string report_text(std::span<const RankRecord> records);

// "all_reduce #5 (1024 float32)"; of a message "recv from rank 2, tag 3 (4 int64)", with ranks of the world.
std::string describe(const RankRecord& record, const Operation& operation);
// "12.3 s", "4 ms", "3:05 min".
std::string span_text(std::uint64_t nanoseconds);

}  // namespace lockstep::flight
