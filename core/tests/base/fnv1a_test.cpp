#include "base/fnv1a.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// The values of the reference implementation: files and ranks of other builds have them too.
TEST(Fnv1a, HasTheReferenceValues) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325U);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8U);
  EXPECT_EQ(fnv1a("\xff"), 0xaf64724c8602eb6eU);
}

TEST(Fnv1a, AddsWordsAsAWhole) {
  Fnv1a words;
  words.add_word('a');
  EXPECT_EQ(words.value(), fnv1a("a"));
  words.add_word(std::uint64_t{1} << 40);
  EXPECT_EQ(words.value(), (fnv1a("a") ^ (std::uint64_t{1} << 40)) * 0x100000001b3U);
}

}  // namespace
}  // namespace lockstep
