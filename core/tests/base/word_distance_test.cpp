#include "base/word_distance.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

TEST(WordDistance, CountsLettersThatDiffer) {
  EXPECT_EQ(word_distance("", ""), 0U);
  EXPECT_EQ(word_distance("", "abc"), 3U);
  EXPECT_EQ(word_distance("epoch", "epochs"), 1U);
  EXPECT_EQ(word_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(word_distance("Shuffel", "shuffle"), 1U);  // swapped letters count once
  EXPECT_EQ(word_distance("CenterCorp", "center_crop"), 2U);
}

TEST(WordDistance, DoesNotTellCapitalsAndJoinsApart) {
  EXPECT_EQ(word_distance("Learning-Rate", "learning_rate"), 0U);
  EXPECT_EQ(word_distance("RESIZE", "Resize"), 0U);
}

TEST(WordDistance, ComparesTheBeginningOfLongWords) {
  const std::string longest(kComparedLetters, 'a');
  EXPECT_EQ(word_distance(longest + std::string(1'000'000, 'b'), longest + "c"), 0U);
  EXPECT_EQ(word_distance(longest, std::string(kComparedLetters, 'b')), kComparedLetters);
}

TEST(WordDistance, IsTheSameBothWays) {
  for (const char* const one : {"", "a", "ab", "ba", "abc", "cab", "RandomCrop", "RandomCorp"}) {
    for (const char* const other : {"", "b", "ab", "bca", "randomcrop", "Crop"})
      EXPECT_EQ(word_distance(one, other), word_distance(other, one)) << one << ", " << other;
  }
}

}  // namespace
}  // namespace lockstep
