// Combinations of options: few, in which every two (or three) settings that go together meet.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace lockstep::test {

struct Factor {
  std::string name;
  std::vector<std::string> levels;  // the first one goes with every level of the other factors
};

// Levels of two factors that do not go together.
struct Exclusion {
  std::string factor;
  std::vector<std::string> levels;
  std::string other_factor;
  std::vector<std::string> other_levels;
};

using Combination = std::map<std::string, std::string>;  // a level of each factor

// As few combinations as a greedy search finds, in which every `strength` settings of different factors that go
// together meet at least once. The same in every run.
std::vector<Combination> combine(const std::vector<Factor>& factors, const std::vector<Exclusion>& exclusions,
                                 std::size_t strength);

}  // namespace lockstep::test
