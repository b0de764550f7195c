// The tutorial's split of a dataset, in Python's order.
#include "lockstep/data/data_partitioner.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/data/errors.h"

namespace lockstep::data {
namespace {

std::vector<std::int64_t> part(const DataPartitioner& partitioner, int i) {
  const auto indices = partitioner.use(i);
  return {indices.begin(), indices.end()};
}

// The result of random.Random(1234).shuffle(list(range(n))) in CPython.
TEST(DataPartitioner, ShufflesAsPythonDoes) {
  EXPECT_EQ(part(DataPartitioner(10, {1.0}), 0), (std::vector<std::int64_t>{2, 8, 3, 5, 6, 4, 9, 0, 1, 7}));
  const DataPartitioner thousand(1000, {0.005, 0.992, 0.003});
  EXPECT_EQ(part(thousand, 0), (std::vector<std::int64_t>{56, 306, 558, 770, 733}));
  EXPECT_EQ(part(thousand, 2), (std::vector<std::int64_t>{451, 796, 989}));
}

TEST(DataPartitioner, SplitsByFractions) {
  const DataPartitioner partitioner(11, std::vector<double>(3, 1.0 / 3));
  ASSERT_EQ(partitioner.partitions(), 3);
  std::set<std::int64_t> seen;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(partitioner.use(i).size(), 3U);
    seen.insert(partitioner.use(i).begin(), partitioner.use(i).end());
  }
  EXPECT_EQ(seen.size(), 9U) << "two are left over";
  EXPECT_EQ(part(DataPartitioner(11, {0.5, 0.5}, 7), 1), part(DataPartitioner(11, {0.5, 0.5}, 7), 1));
  EXPECT_NE(part(DataPartitioner(11, {0.5, 0.5}, 7), 1), part(DataPartitioner(11, {0.5, 0.5}, 8), 1));
  EXPECT_TRUE(DataPartitioner(0, {0.5, 0.5}).use(1).empty());
}

TEST(DataPartitioner, WrongArgumentsAreErrors) {
  EXPECT_THROW(DataPartitioner(-1, {1.0}), DataError);
  EXPECT_THROW(DataPartitioner(10, {0.7, 0.7}), DataError);
  EXPECT_THROW(DataPartitioner(10, {-0.1}), DataError);
  EXPECT_THROW(DataPartitioner(10, {1.0}).use(1), DataError);
}

}  // namespace
}  // namespace lockstep::data
