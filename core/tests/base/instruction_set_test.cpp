#include "base/instruction_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

namespace lockstep {
namespace {

constexpr std::array kAll{InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512};

TEST(InstructionSets, ChoosesTheWidestOrTheOneThatIsNamed) {
  EXPECT_EQ(choose_instruction_set(kAll, nullptr), InstructionSet::kAvx512);
  for (const InstructionSet set : kAll) {
    EXPECT_EQ(choose_instruction_set(kAll, std::string(to_string(set)).c_str()), set);
  }
  EXPECT_EQ(choose_instruction_set(kAll, "neon"), InstructionSet::kAvx512);
  EXPECT_EQ(choose_instruction_set(std::span(kAll).first(1), "avx512"), InstructionSet::kPortable);
}

// The flags that the kernel shows are the judge.
TEST(InstructionSets, SupportedAreThoseOfTheProcessor) {
  std::string flags;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line) && flags.empty();) {
    if (line.starts_with("flags")) flags = line + " ";
  }
  const auto has = [&](const std::string& flag) { return flags.find(" " + flag + " ") != std::string::npos; };
  std::size_t expected = 1;
  if (has("avx2") && has("f16c")) {
    expected = has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") ? 3 : 2;
  }
  const auto supported = supported_instruction_sets();
  EXPECT_EQ(supported.size(), expected);
  EXPECT_TRUE(std::equal(supported.begin(), supported.end(), kAll.begin()));
  EXPECT_NE(std::find(supported.begin(), supported.end(), instruction_set()), supported.end());
}

}  // namespace
}  // namespace lockstep
