#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

namespace lockstep {
namespace {

TEST(Random, BytesFillTheWholePlace) {
  // Each byte is zero once in 256 draws: 16 times in a row is no chance.
  std::array<bool, 256> touched{};
  for (int i = 0; i < 16; ++i) {
    std::array<std::byte, 256> bytes{};
    ASSERT_TRUE(fill_random(bytes).ok());
    for (std::size_t at = 0; at < bytes.size(); ++at) touched[at] = touched[at] || bytes[at] != std::byte{0};
  }
  EXPECT_TRUE(std::all_of(touched.begin(), touched.end(), [](bool yes) { return yes; }));
  EXPECT_TRUE(fill_random({}).ok());
}

TEST(Random, DigitsAreTwoForEachByteAndDifferEachTime) {
  std::set<std::string> all;
  for (int i = 0; i < 100; ++i) {
    const auto digits = random_digits(16);
    ASSERT_TRUE(digits.ok()) << digits.status().message();
    EXPECT_EQ(digits.value().size(), 32U);
    EXPECT_EQ(digits.value().find_first_not_of("0123456789abcdef"), std::string::npos) << digits.value();
    all.insert(digits.value());
  }
  EXPECT_EQ(all.size(), 100U);
  EXPECT_EQ(random_digits(0).value(), "");
}

}  // namespace
}  // namespace lockstep
