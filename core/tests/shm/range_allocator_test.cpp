// RangeAllocator against hand-made cases and a naive model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "shm/ranges.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();

TEST(RangeAllocator, TakesTheSmallestRangeThatFits) {
  RangeAllocator ranges(1024);
  const auto a = ranges.allocate(256, 64);
  const auto b = ranges.allocate(64, 64);
  const auto c = ranges.allocate(128, 64);
  const auto d = ranges.allocate(64, 64);
  ASSERT_TRUE(a && b && c && d);
  EXPECT_EQ(ranges.deallocate(*a), 256U);
  EXPECT_EQ(ranges.deallocate(*c), 128U);
  EXPECT_EQ(ranges.allocate(100, 64), c);
  EXPECT_EQ(ranges.allocate(200, 64), a);
}

TEST(RangeAllocator, MergesNeighboursOnBothSides) {
  RangeAllocator ranges(192);
  const auto a = ranges.allocate(64, 64);
  const auto b = ranges.allocate(64, 64);
  const auto c = ranges.allocate(64, 64);
  EXPECT_FALSE(ranges.allocate(1, 1));
  ranges.deallocate(*a);
  ranges.deallocate(*c);
  EXPECT_FALSE(ranges.allocate(128, 64));
  ranges.deallocate(*b);
  EXPECT_EQ(ranges.allocated(), 0U);
  EXPECT_EQ(ranges.allocate(192, 64), 0U);
}

TEST(RangeAllocator, AlignsAndKeepsWhatItSkips) {
  RangeAllocator ranges(8192);
  EXPECT_EQ(ranges.allocate(64, 64), 0U);
  EXPECT_EQ(ranges.allocate(4096, 4096), 4096U);
  EXPECT_EQ(ranges.allocate(4032, 64), 64U);
  EXPECT_FALSE(ranges.allocate(1, 1));
}

TEST(RangeAllocator, RefusesWhatCannotFit) {
  RangeAllocator ranges(4096);
  for (const std::size_t bytes : {std::size_t{4097}, kHuge, kHuge - 1, kHuge - 4094, kHuge / 2 + 1}) {
    EXPECT_FALSE(ranges.allocate(bytes, 4096)) << bytes;
  }
  EXPECT_TRUE(ranges.allocate(0, 64));
  RangeAllocator empty(0);
  EXPECT_FALSE(empty.allocate(0, 64));
}

TEST(RangeAllocator, KeepsWhatIsAddedApart) {
  RangeAllocator ranges(256);
  ranges.add(320, 512);
  EXPECT_FALSE(ranges.allocate(576, 64).has_value());
  EXPECT_EQ(ranges.allocate(300, 64), 320U);
  EXPECT_EQ(ranges.allocate(256, 64), 0U);
  EXPECT_EQ(ranges.deallocate(320), 320U);
  EXPECT_EQ(ranges.deallocate(0), 256U);
  EXPECT_FALSE(ranges.allocate(513, 64).has_value());
  EXPECT_EQ(ranges.allocate(512, 64), 320U);
}

TEST(RangeAllocator, KnowsOnlyWhatItHandedOut) {
  RangeAllocator ranges(4096);
  const auto a = ranges.allocate(128, 64);
  EXPECT_EQ(ranges.deallocate(*a + 64), 0U);
  EXPECT_EQ(ranges.deallocate(*a), 128U);
  EXPECT_EQ(ranges.deallocate(*a), 0U);
}

// One flag per unit: says which units are free, how long the runs are, and so which results best fit may give.
class Model {
 public:
  Model(std::size_t capacity, std::size_t unit) : unit_(unit), used_(capacity / unit) {}

  bool is_free(std::size_t offset, std::size_t bytes) const {
    const auto begin = used_.begin() + offset / unit_;
    return offset + bytes <= used_.size() * unit_ &&
           std::none_of(begin, begin + bytes / unit_, [](bool b) { return b; });
  }
  bool fits(std::size_t bytes, std::size_t alignment) const {
    for (std::size_t offset = 0; offset < used_.size() * unit_; offset += alignment) {
      if (is_free(offset, bytes)) return true;
    }
    return false;
  }
  void mark(std::size_t offset, std::size_t bytes, bool used) {
    std::fill_n(used_.begin() + offset / unit_, bytes / unit_, used);
  }
  std::size_t allocated() const { return unit_ * std::count(used_.begin(), used_.end(), true); }

 private:
  std::size_t unit_;
  std::vector<bool> used_;
};

TEST(RangeAllocator, AgreesWithANaiveModel) {
  constexpr std::size_t kUnit = 64;
  constexpr std::size_t kCapacity = 256 * kUnit;
  std::mt19937 random(1234);
  for (int round = 0; round < 20; ++round) {
    RangeAllocator ranges(kCapacity);
    Model model(kCapacity, kUnit);
    std::map<std::size_t, std::size_t> live;
    for (int step = 0; step < 500; ++step) {
      if (live.empty() || random() % 5 < 3) {
        const std::size_t alignment = kUnit << (random() % 4);
        const std::size_t bytes = 1 + random() % (20 * kUnit);
        const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
        const auto offset = ranges.allocate(bytes, alignment);
        ASSERT_EQ(offset.has_value(), model.fits(rounded, alignment)) << bytes << " aligned to " << alignment;
        if (!offset) continue;
        ASSERT_EQ(*offset % alignment, 0U);
        ASSERT_TRUE(model.is_free(*offset, rounded));
        model.mark(*offset, rounded, true);
        live[*offset] = rounded;
      } else {
        const auto victim = std::next(live.begin(), random() % live.size());
        ASSERT_EQ(ranges.deallocate(victim->first), victim->second);
        model.mark(victim->first, victim->second, false);
        live.erase(victim);
      }
      ASSERT_EQ(ranges.allocated(), model.allocated());
      std::size_t free = 0;
      ranges.for_each_free([&](std::size_t offset, std::size_t bytes) {
        ASSERT_TRUE(model.is_free(offset, bytes));
        free += bytes;
      });
      ASSERT_EQ(free, kCapacity - ranges.allocated());
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
