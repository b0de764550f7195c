// Records made by hand, for tests of what is said of them.
#pragma once

#include <string>
#include <vector>

#include "flight/record.h"

namespace lockstep::test {

inline constexpr std::uint64_t kSecond = 1'000'000'000;

// A rank of a group 'world' of `size`, that was dumped 100 seconds after the clock began.
inline flight::RankRecord rank_of(int rank, int size) {
  flight::RankRecord record;
  record.rank = rank;
  record.pid = 1000 + rank;
  record.host = "here";
  record.job = "job";
  record.now = 100 * kSecond;
  record.is_dump = true;
  record.process = "was running";
  flight::GroupInfo world;
  world.name = "world";
  world.rank = rank;
  world.size = size;
  for (int i = 0; i < size; ++i) world.ranks.push_back(i);
  record.groups.push_back(std::move(world));
  return record;
}

// Called `age` seconds before the dump; done a second later, unless it is under way.
inline flight::Operation& add(flight::RankRecord& record, flight::Op op, std::uint64_t number, std::uint64_t age,
                              flight::Outcome outcome = flight::Outcome::kDone) {
  flight::Operation operation;
  operation.serial = ++record.total;
  operation.called = record.now - age * kSecond;
  operation.waited = operation.called;
  operation.outcome = outcome;
  operation.ended = outcome == flight::Outcome::kUnderWay ? 0 : operation.called + kSecond;
  operation.op = op;
  operation.type = 6;
  operation.number = number;
  operation.input = operation.output = 1024;
  operation.group = 0;
  return record.operations.emplace_back(operation);
}

}  // namespace lockstep::test
