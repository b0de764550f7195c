#include "nn/ddp/buckets.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lockstep::nn_detail {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;

constexpr auto kFloat = c10::ScalarType::Float;
constexpr auto kDouble = c10::ScalarType::Double;

Buckets assign(const std::vector<GradientInfo>& gradients, std::size_t first_cap, std::size_t cap) {
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), 0);
  return assign_buckets(gradients, order, first_cap, cap);
}

TEST(Buckets, GradientsArePaddedToCacheLines) {
  EXPECT_EQ(padded_elements({1, kFloat}), 16U);
  EXPECT_EQ(padded_elements({16, kFloat}), 16U);
  EXPECT_EQ(padded_elements({17, kFloat}), 32U);
  EXPECT_EQ(padded_elements({9, kDouble}), 16U);
  EXPECT_EQ(padded_elements({33, c10::ScalarType::BFloat16}), 64U);
  EXPECT_EQ(padded_elements({1, c10::ScalarType::ComplexDouble}), 4U);
  EXPECT_EQ(padded_elements({0, kFloat}), 0U);
}

TEST(Buckets, CloseWhenTheirCapIsReached) {
  const std::vector<GradientInfo> gradients(6, {16, kFloat});  // 64 bytes each
  EXPECT_EQ(assign(gradients, 64, 128), (Buckets{{0}, {1, 2}, {3, 4}, {5}}));
  EXPECT_EQ(assign(gradients, 1000, 1000), (Buckets{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(assign(gradients, 1, 1), (Buckets{{0}, {1}, {2}, {3}, {4}, {5}}));
}

TEST(Buckets, PaddingCountsTowardsTheCap) {
  EXPECT_EQ(assign({{1, kFloat}, {1, kFloat}, {1, kFloat}}, 128, 128), (Buckets{{0, 1}, {2}}));
}

TEST(Buckets, AGradientLargerThanTheCapIsNotCut) {
  EXPECT_EQ(assign({{16, kFloat}, {100000, kFloat}, {16, kFloat}}, 128, 128), (Buckets{{0, 1}, {2}}));
}

// Two dtypes alternate: each has its own buckets, in the order in which these become complete.
TEST(Buckets, HoldOneDtypeEach) {
  const std::vector<GradientInfo> gradients{{16, kFloat}, {8, kDouble}, {16, kFloat}, {8, kDouble}, {16, kFloat}};
  EXPECT_EQ(assign(gradients, 128, 128), (Buckets{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(assign(gradients, 1000, 1000), (Buckets{{1, 3}, {0, 2, 4}}));
}

TEST(Buckets, SparseGradientsAreLeftOut) {
  EXPECT_EQ(assign({{16, kFloat}, {16, kFloat, true}, {16, kFloat}}, 1000, 1000), (Buckets{{0, 2}}));
  EXPECT_EQ(assign({{16, kFloat, true}}, 1000, 1000), Buckets());
  EXPECT_EQ(assign({}, 1000, 1000), Buckets());
}

TEST(Buckets, FollowTheGivenOrder) {
  const std::vector<GradientInfo> gradients(4, {16, kFloat});
  EXPECT_EQ(assign_buckets(gradients, {3, 1, 2, 0}, 128, 128), (Buckets{{3, 1}, {2, 0}}));
}

}  // namespace
}  // namespace lockstep::nn_detail
