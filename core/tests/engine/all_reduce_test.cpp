// All-reduce by size, place of the buffer, blocking or not, and number of ranks.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "engine/calls.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

using test::Place;

// A buffer of floats in the arena or on the heap.
class Buffer {
 public:
  Buffer(SharedArena& arena, Place place, std::size_t count) : arena_(place == Place::kArena ? &arena : nullptr) {
    if (arena_ != nullptr) {
      data_ = reinterpret_cast<float*>(arena_->allocate(count * sizeof(float) + 1).value());
    } else {
      heap_.resize(count + 1);
      data_ = heap_.data();
    }
  }
  ~Buffer() {
    if (arena_ != nullptr) arena_->deallocate(reinterpret_cast<std::byte*>(data_));
  }
  float* data() { return data_; }
  float& operator[](std::size_t i) { return data_[i]; }

 private:
  SharedArena* arena_;
  std::vector<float> heap_;
  float* data_;
};

float value_of(int rank, std::size_t i, int round) {
  return static_cast<float>((rank + 1) * 0.5 + i % 97 + round);
}

float expected_sum(int world, std::size_t i, int round) {
  float sum = value_of(0, i, round);
  for (int rank = 1; rank < world; ++rank) sum += value_of(rank, i, round);
  return sum;
}

void check_sums(Communicator& group, Place place, bool blocking, std::size_t count) {
  Buffer data(group.arena(), place, count);
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < count; ++i) data[i] = value_of(group.rank(), i, round);
    if (round == group.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the others stop spinning
    AllReduce args{data.data(), data.data(), count};
    if (blocking) {
      const Status status = group.run(args, Deadline::after(std::chrono::seconds(30)));
      ASSERT_TRUE(status.ok()) << status.message();
    } else {
      auto operation = group.start(args);
      ASSERT_TRUE(operation.ok()) << operation.status().message();
      const Status status = operation->wait(Deadline::after(std::chrono::seconds(30)));
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(data[i], expected_sum(group.group_size(), i, round)) << i << " of " << count;
  }
}

class AllReduceTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AllReduceTest, testing::Values(1, 2, 3, 4, 7, 16));

TEST_P(AllReduceTest, SumsEverySizeFromEveryPlace) {
  test::run_threads(GetParam(), [](Communicator& group) {
    for (const std::size_t count : {0, 1, 4, 5, 300, 2048, 2049, 40'000, 300'001}) {
      for (const Place place : {Place::kArena, Place::kPrivate}) {
        for (const bool blocking : {true, false}) check_sums(group, place, blocking, count);
      }
    }
  });
}

TEST_P(AllReduceTest, MixesPlacesAndBlockingBetweenRanks) {
  test::run_threads(GetParam(), [](Communicator& group) {
    for (const std::size_t count : {300, 2'000, 8'192, 8'193, 50'000}) {
      for (int round = 0; round < 16; ++round) {  // every pair of modes
        const int mode = (group.rank() == 0 ? round : round / 4 + group.rank()) % 4;
        check_sums(group, mode % 2 == 0 ? Place::kArena : Place::kPrivate, mode < 2, count);
      }
    }
  });
}

TEST_P(AllReduceTest, KeepsManyUnderWay) {
  test::run_threads(GetParam(), [](Communicator& group) {
    constexpr int kOperations = 100;
    std::vector<std::vector<float>> buffers(kOperations);
    std::vector<Operation> operations;
    for (int i = 0; i < kOperations; ++i) {
      buffers[i].assign(i * 100 + 1, static_cast<float>(group.rank() + i));
      auto operation = group.start(AllReduce{buffers[i].data(), buffers[i].data(), buffers[i].size()});
      ASSERT_TRUE(operation.ok()) << operation.status().message();
      operations.push_back(*operation);
    }
    const int world = group.group_size();
    const int sum_of_ranks = world * (world - 1) / 2;
    for (int i = kOperations - 1; i >= 0; --i) {
      ASSERT_TRUE(operations[i].wait(Deadline::never()).ok());
      ASSERT_EQ(operations[i].sequence(), static_cast<std::uint64_t>(i + 1));
      const float expected = static_cast<float>(world * i + sum_of_ranks);
      for (const float value : buffers[i]) ASSERT_EQ(value, expected);
    }
  });
}

}  // namespace
}  // namespace lockstep::comm
