#include "parity/option_grid.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::test {
namespace {

TEST(OptionGrid, HasEveryPairThatGoesTogether) {
  const std::vector<Factor> factors{{"a", {"0", "1", "2"}}, {"b", {"0", "1"}}, {"c", {"0", "1"}}, {"d", {"0", "1"}}};
  const std::vector<Exclusion> exclusions{{"a", {"1", "2"}, "c", {"1"}}};
  const std::vector<Combination> all = combine(factors, exclusions, 2);
  for (const Factor& one : factors) {
    for (const Factor& other : factors) {
      if (one.name >= other.name) continue;
      for (const std::string& level : one.levels) {
        for (const std::string& other_level : other.levels) {
          const auto has_both = [&](const Combination& some) {
            return some.at(one.name) == level && some.at(other.name) == other_level;
          };
          const bool excluded = one.name == "a" && level != "0" && other.name == "c" && other_level == "1";
          EXPECT_EQ(std::any_of(all.begin(), all.end(), has_both), !excluded)
              << one.name << '=' << level << ' ' << other.name << '=' << other_level;
        }
      }
    }
  }
  EXPECT_LE(all.size(), 9U);  // of 24
  EXPECT_EQ(combine(factors, exclusions, 1).size(), 4U) << "three of a, and one for c=1";
}

}  // namespace
}  // namespace lockstep::test
