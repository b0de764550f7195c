// Long random mixtures of all collectives and messages, on groups of one machine and of several.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "engine/calls.h"
#include "support/effort.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

// Steps of up to `max_count` elements.
struct Sequence {
  std::uint64_t seed;
  int steps;
  std::size_t max_count;
};

struct Shape {
  const char* name;
  std::vector<int> machine_of;  // by rank
  std::vector<Sequence> sequences;

  bool is_one_machine() const { return *std::max_element(machine_of.begin(), machine_of.end()) == 0; }
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.name; }
};

std::vector<Shape> one_machine() {
  const std::vector<Sequence> sequences{
      {1, 120, 30'000}, {2, 120, 30'000}, {3, 120, 30'000}, {4, 120, 30'000}, {5, 12, 400'000}};
  return {{"World1", {0}, sequences},
          {"World2", {0, 0}, sequences},
          {"World3", {0, 0, 0}, sequences},
          {"World4", {0, 0, 0, 0}, sequences},
          {"World7", {0, 0, 0, 0, 0, 0, 0}, sequences}};
}

std::vector<Shape> machines() {
  const std::vector<Sequence> sequences{{5, 60, 3'000}, {6, 8, 700'000}};
  return {{"1And1", {0, 1}, sequences},
          {"2And2", {0, 0, 1, 1}, sequences},
          {"1And3", {0, 1, 1, 1}, sequences},
          {"2And1And1", {0, 0, 1, 2}, sequences},
          {"3And2", {0, 0, 0, 1, 1}, sequences},
          {"1And1And1And1", {0, 1, 2, 3}, sequences},
          {"RanksOfAMachineNeedNotBeNeighboursInNumber", {0, 1, 0, 1, 2}, {{7, 60, 5'000}}}};
}

class RandomSequencesMulti : public testing::TestWithParam<Shape> {};
const auto kName = [](const testing::TestParamInfo<Shape>& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(LocalGroup, RandomSequencesMulti, testing::ValuesIn(one_machine()), kName);
INSTANTIATE_TEST_SUITE_P(HierarchicalGroup, RandomSequencesMulti, testing::ValuesIn(machines()), kName);

TEST_P(RandomSequencesMulti, GiveWhatEachOperationGivesAlone) {
  const Shape& shape = GetParam();
  // Sums of several machines are taken in another order, which the reference has to know.
  const std::vector<int> machine_of = shape.is_one_machine() ? std::vector<int>() : shape.machine_of;
  test::run_machines(shape.machine_of, [&](Communicator& group) {
    for (const Sequence& sequence : shape.sequences) {
      const int steps = shape.is_one_machine() ? test::repetitions(sequence.steps) : sequence.steps;
      ASSERT_NO_FATAL_FAILURE(test::run_random_sequence(group, sequence.seed, steps, sequence.max_count, machine_of))
          << "seed " << sequence.seed;
    }
  });
}

}  // namespace
}  // namespace lockstep::comm
