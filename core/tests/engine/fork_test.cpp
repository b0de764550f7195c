// Ranks that fork: the child can do anything with its copies without effect on the group and its ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "engine/calls.h"
#include "engine/process_group.h"
#include "support/forked.h"
#include "support/process_ranks.h"

namespace {

bool is_in_fork = false;

}  // namespace

// AddressSanitizer asks whether not to search for leaks. To a fork, all memory of other threads looks lost.
// NOLINTNEXTLINE(bugprone-reserved-identifier, readability-identifier-naming): the leak sanitizer calls it
extern "C" int __lsan_is_turned_off() {
  return is_in_fork ? 1 : 0;
}

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

// What a child does.
enum class Deed { kUsesIt, kFreesAll, kExits, kReturns, kThrows, kExecs };
constexpr Deed kDeeds[] = {Deed::kUsesIt, Deed::kFreesAll, Deed::kExits, Deed::kReturns, Deed::kThrows, Deed::kExecs};

int expected_end(Deed deed) {
  switch (deed) {
    case Deed::kExits: return 7;
    case Deed::kThrows: return EXIT_FAILURE;
    default: return EXIT_SUCCESS;
  }
}

// What a rank has: a world, a second group, memory of its arena, a message and a sum under way.
struct Belongings {
  static constexpr std::size_t kCount = 300'000;

  Belongings() : group(std::make_unique<test::ProcessGroup>()), second(group->join("second")) {
    SharedArena& arena = (*group)->arena();
    shared = reinterpret_cast<float*>(arena.allocate(kCount * sizeof(float)).value());
    std::fill_n(shared, kCount, 1.0F);
  }
  ~Belongings() {
    if (shared != nullptr) (*group)->arena().deallocate(reinterpret_cast<std::byte*>(shared));
  }

  std::unique_ptr<test::ProcessGroup> group;
  std::unique_ptr<Communicator> second;
  std::vector<float> own = std::vector<float>(kCount, 2.0F);
  float* shared = nullptr;
  std::vector<Operation> started;
};

bool refused(const Status& status) {
  return status.code() == ErrorCode::kUnsupported && status.message().find("fork of") != std::string::npos;
}

// 0: every use is refused, and the memory is there.
int use(Belongings& all) {
  Communicator& group = **all.group;
  float value = 1;
  const Deadline soon = Deadline::after(5s);
  if (!refused(group.run(AllReduce{&value, &value, 1}, soon))) return 11;
  if (!refused(group.start(AllReduce{all.own.data(), all.own.data(), all.own.size()}).status())) return 12;
  if (!refused(group.run(Send{{&value, 4}, 0, 0}, soon)) || !refused(all.second->health())) return 13;
  if (!refused(group.arena().allocate(100).status())) return 14;
  for (Operation& operation : all.started) {
    if (!operation.is_completed() || !refused(operation.wait(soon))) return 15;
  }
  group.progress();
  group.abort("a fork has no say");
  if (!refused(all.group->store().set("a key", "a value"))) return 16;
  if (all.shared[5] < 1) return 17;
  std::fill_n(all.shared, Belongings::kCount, -1.0F);
  return 0;
}

// In the child. Comes back where the rank's function is to return, as main() would.
void commit(Deed deed, Belongings& all) {
  switch (deed) {
    case Deed::kUsesIt: _exit(use(all));
    case Deed::kFreesAll:
      all.started.clear();
      (*all.group)->arena().deallocate(reinterpret_cast<std::byte*>(std::exchange(all.shared, nullptr)));
      all.second.reset();
      all.group.reset();
      _exit(0);
    case Deed::kExits: std::exit(7);
    case Deed::kReturns: return;
    case Deed::kThrows: throw std::runtime_error("from a fork");
    case Deed::kExecs: execl("/bin/true", "true", nullptr); _exit(99);
  }
}

void expect_sum(Communicator& group, std::vector<float>& values, const char* what) {
  std::fill(values.begin(), values.end(), static_cast<float>(group.rank() + 1));
  const Status status = group.run(AllReduce{values.data(), values.data(), values.size()}, Deadline::after(30s));
  ASSERT_TRUE(status.ok()) << what << ": " << status.message();
  const int sum_of_ranks = group.group_size() * (group.group_size() + 1) / 2;
  const auto sum = static_cast<float>(sum_of_ranks);
  for (const float value : values) ASSERT_EQ(value, sum) << what;
}

enum class Moment { kIdle, kUnderWay, kOtherThread };

// True in a child that is to return.
bool fork_once(Deed deed, Moment moment, Belongings& all) {
  Communicator& group = **all.group;
  if (moment == Moment::kUnderWay) {
    all.started.push_back(group.start(AllReduce{all.own.data(), all.own.data(), all.own.size()}).value());
    all.started.push_back(all.second->start(AllReduce{all.shared, all.shared, Belongings::kCount}).value());
  }
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::unique_ptr<std::thread, LeakInForks> other;
  if (moment == Moment::kOtherThread) {
    other.reset(new std::thread([&] {
      std::vector<float> values(50'000);
      std::uint8_t go_on = 1;
      while (go_on != 0) {
        expect_sum(*all.second, values, "the other thread");
        ++rounds;
        // All ranks stop after the same round.
        go_on = stop ? 0 : 1;
        const AllReduce vote{&go_on, &go_on, 1, DataType::kUInt8, ReduceOp::kMax};
        ASSERT_TRUE(all.second->run(vote, Deadline::after(30s)).ok());
      }
    }));
    while (rounds < 2) std::this_thread::yield();
  }
  const pid_t child = fork();
  if (child == 0) {
    is_in_fork = true;
    commit(deed, all);
    return true;
  }
  EXPECT_EQ(test::end_of(child), expected_end(deed)) << "deed " << static_cast<int>(deed);
  stop = true;
  if (other) other->join();
  for (Operation& operation : all.started) {
    const Status status = operation.wait(Deadline::after(30s));
    EXPECT_TRUE(status.ok()) << status.message();
  }
  all.started.clear();
  return false;
}

// Where run_processes puts the ranks.
std::vector<int> machines(int world) {
  const char* const number = std::getenv("LOCKSTEP_TEST_MACHINES");
  if (number == nullptr) return {};
  std::vector<int> all;
  for (int rank = 0; rank < world; ++rank) all.push_back(rank % std::atoi(number));
  return all;
}

void fork_in_all_ways(Moment moment) {
  test::run_processes(3, [&](int) {
    Belongings all;
    const auto world = static_cast<float>((*all.group)->group_size());
    float shared = 1;
    for (const Deed deed : kDeeds) {
      std::fill(all.own.begin(), all.own.end(), 2.0F);
      if (fork_once(deed, moment, all)) return;
      if (moment == Moment::kUnderWay) shared *= world;
      for (std::size_t i = 0; i < Belongings::kCount; ++i) {
        ASSERT_EQ(all.shared[i], shared) << "deed " << static_cast<int>(deed);
        ASSERT_EQ(all.own[i], moment == Moment::kUnderWay ? 2 * world : 2) << "deed " << static_cast<int>(deed);
      }
      expect_sum(**all.group, all.own, "afterwards");
      expect_sum(*all.second, all.own, "afterwards, the second group");
      test::run_random_sequence(**all.group, static_cast<std::uint64_t>(deed), 10, 20'000, machines(3));
    }
  });
}

TEST(ForksMulti, OfAnIdleRank) {
  fork_in_all_ways(Moment::kIdle);
}

TEST(ForksMulti, WithOperationsUnderWay) {
  fork_in_all_ways(Moment::kUnderWay);
}

TEST(ForksMulti, WhileAnotherThreadCommunicates) {
  fork_in_all_ways(Moment::kOtherThread);
}

// What a program that a rank starts gets to see of the group.
TEST(ForksMulti, ProgramsInheritNoDescriptors) {
  test::run_processes(2, [](int) {
    const test::ProcessGroup group;
    const auto second = group.join("second");
    const auto inherits = [&](std::string& text) {
      text.clear();
      FILE* const pipe = popen("ls -l /proc/self/fd", "r");
      if (pipe == nullptr) throw std::runtime_error("popen failed");
      for (char part[256]; std::fgets(part, sizeof part, pipe) != nullptr;) text += part;
      EXPECT_EQ(pclose(pipe), 0);
      EXPECT_EQ(std::system("exit 3"), 3 << 8);
      const auto has = [&](const char* mine) { return text.find(mine) != std::string::npos; };
      return has("lockstep") || has("memfd") || has("pidfd") || has("socket:") || has("event");
    };
    // Between machines, UCX opens connections a little later, and the group must find them first.
    std::string text;
    int seen = 1;
    const Deadline limit = Deadline::after(20s);
    while (seen != 0 && !limit.expired()) {
      seen = inherits(text) ? 1 : 0;
      std::this_thread::sleep_for(2ms * (group->rank() + 1));
      EXPECT_TRUE(group->run(AllReduce{&seen, &seen, 1, DataType::kInt32, ReduceOp::kMax}, Deadline::after(30s)).ok());
      EXPECT_TRUE(second->run(Barrier{}, Deadline::after(30s)).ok());
    }
    EXPECT_EQ(seen, 0) << text;
  });
}

}  // namespace
}  // namespace lockstep::comm
