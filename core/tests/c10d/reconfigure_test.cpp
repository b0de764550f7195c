// Worlds and groups that are formed anew, from processes that all live. reconfigure_fault_test.cpp kills some.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <thread>

#include "c10d/ranks.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/hash_store.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const InitOptions kPrepared{.timeout = seconds(60), .enable_reconfigure = true};

float sum_over(const ProcessGroup& group = nullptr) {
  const torch::Tensor tensor = torch::full({1000}, static_cast<float>(get_rank(group) + 1));
  all_reduce(tensor, {.group = group});
  return tensor[999].item<float>();
}

float sum_of(int ranks) {
  return static_cast<float>(ranks * (ranks + 1)) / 2;
}

int entries_of(const char* folder) {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

TEST(ReconfigureMulti, TheSameRanksFormANewWorld) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard guard("", kPrepared);
    const ProcessGroup before = default_group();
    const ProcessGroup pair = new_group({0, 1});
    const torch::Tensor kept =
        before->getBackend(torch::kCPU)->allocateTensor(1000, torch::TensorOptions(torch::kFloat)).fill_(rank);
    const ProcessGroup after = reconfigure();
    EXPECT_EQ(after, default_group());
    EXPECT_EQ(get_rank(), rank);
    EXPECT_EQ(get_world_size(), 3);
    EXPECT_EQ(sum_over(), sum_of(3));
    EXPECT_EQ(kept[7].item<float>(), static_cast<float>(rank)) << "memory of the group's tensors stays";
    all_reduce(kept);
    EXPECT_EQ(kept[7].item<float>(), 3.0F);
    for (const ProcessGroup& old : {before, rank < 2 ? pair : before}) {
      expect_error(ErrorCode::kAborted, {"formed anew by reconfigure", "use the new group", "make wrappers"},
                   [&] { all_reduce(torch::ones({2}), {.group = old}); });
    }
    EXPECT_EQ(sum_over(new_group({0, 1, 2})), sum_of(3));
    EXPECT_EQ(sum_over(split_group(0, -rank)), sum_of(3));
  });
}

// Handles that the ranks of a test tell one another in a file, whatever worlds they are in.
class Handles {
 public:
  explicit Handles(const std::filesystem::path& path) : store_(comm::FileStore::open(path).value()) {}

  std::vector<std::string> exchange(int place, int count) {
    ++round_;
    EXPECT_TRUE(store_->set(key(place), get_reconfigure_handle()).ok());
    std::vector<std::string> all;
    for (int one = 0; one < count; ++one) all.push_back(store_->get(key(one), Deadline::after(seconds(60))).value());
    return all;
  }

 private:
  std::string key(int place) const { return fmt::format("{}/{}", round_, place); }
  std::shared_ptr<comm::FileStore> store_;
  int round_ = 0;
};

void start_alone() {
  init_process_group(
      "", {.rank = 0, .world_size = 1, .timeout = seconds(60), .store = std::make_shared<comm::HashStore>()});
}

TEST(ReconfigureMulti, WorldsShrinkGrowMergeAndSplit) {
  const SharedScratchFolder folder;
  run_processes(4, [&](int place) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) unsetenv(name);
    Handles handles(folder.path("handles"));
    start_alone();
    std::vector<std::string> all = handles.exchange(place, 4);
    // A late one joins three that are a world already.
    if (place < 3) reconfigure({.handles = {all[0], all[1], all[2]}, .uuid = 1});
    if (place < 3) {
      EXPECT_EQ(sum_over(), sum_of(3));
    }
    reconfigure({.handles = {all[3], all[2], all[1], all[0]}, .uuid = 2});
    EXPECT_EQ(get_rank(), 3 - place);
    EXPECT_EQ(sum_over(), sum_of(4));
    EXPECT_EQ(get_local_rank() < 4, true);
    // Two worlds, and one of them again.
    const int half = place / 2;
    reconfigure({.handles = {all[half * 2], all[half * 2 + 1]}, .uuid = 3});
    EXPECT_EQ(get_world_size(), 2);
    EXPECT_EQ(sum_over(), sum_of(2));
    reconfigure({.handles = all, .uuid = 4});
    EXPECT_EQ(get_rank(), place);
    EXPECT_EQ(sum_over(), sum_of(4));
    // The ranks know one another now, by their new numbers.
    reconfigure({.handles = {all[1], all[0], all[3], all[2]}, .uuid = 6});
    if (get_rank() < 2) {
      EXPECT_EQ(sum_over(reconfigure({}, new_group({0, 1}))), sum_of(2));
    }
    reconfigure();
    EXPECT_EQ(sum_over(), sum_of(4));
    // Without the one in the middle, which goes on alone.
    if (place == 1) {
      reconfigure({.handles = {all[1]}, .uuid = 5});
      EXPECT_EQ(get_world_size(), 1);
      EXPECT_EQ(sum_over(), 1.0F);
    } else {
      reconfigure({.handles = {all[0], all[2], all[3]}, .uuid = 5});
      EXPECT_EQ(get_rank(), place == 0 ? 0 : place - 1);
      EXPECT_EQ(sum_over(), sum_of(3));
    }
    destroy_process_group();
    EXPECT_FALSE(is_initialized());
  });
}

TEST(ReconfigureMulti, AGroupIsFormedAnewAndTheWorldGoesOn) {
  run_processes(4, [](int rank) {
    const ProcessGroupGuard guard("", kPrepared);
    const std::string own = get_reconfigure_handle();
    const std::vector<std::string> all = all_gather_object(own);
    if (rank != 2) {
      const ProcessGroup old = new_group({0, 1, 3}, {.name = "three"});
      const ProcessGroup same = reconfigure({}, old);
      EXPECT_EQ(get_process_group_ranks(same), (std::vector<int>{0, 1, 3}));
      EXPECT_EQ(sum_over(same), sum_of(3));
      expect_error(ErrorCode::kAborted, {"group 'three' was formed anew"}, [&] { barrier({.group = old}); });
      if (rank != 1) {
        const ProcessGroup fewer = reconfigure({.handles = {all[3], all[0]}, .uuid = 9}, same);
        EXPECT_EQ(get_process_group_ranks(fewer), (std::vector<int>{3, 0}));
        EXPECT_EQ(get_rank(fewer), rank == 3 ? 0 : 1);
        torch::Tensor word = torch::full({3}, rank);
        broadcast(word, 3, {.group = fewer});
        EXPECT_EQ(word[0].item<int>(), 3);
      }
    }
    barrier();
    EXPECT_EQ(sum_over(), sum_of(4));
  });
}

TEST(ReconfigureMulti, WrongCallsLeaveTheWorldAsItIs) {
  run_processes(2, [](int rank) {
    const ProcessGroupGuard guard("", {.timeout = seconds(60)});
    const auto refused = [](std::initializer_list<std::string> pieces, const ReconfigureOptions& options,
                            ErrorCode code = ErrorCode::kInvalidArgument) {
      expect_error(code, pieces, [&] { reconfigure(options); });
    };
    const std::string own = get_reconfigure_handle();
    refused({"InitOptions::enable_reconfigure"}, {});
    refused({"expected a handle of Lockstep", "'rubbish'"}, {.handles = {own, "rubbish"}});
    refused({"twice"}, {.handles = {own, own}});
    const std::vector<std::string> all = all_gather_object(own);
    refused({"own handle", "not among"}, {.handles = {all[1 - rank]}});
    refused({"timeout must be positive"}, {.handles = {own}, .timeout = milliseconds(0)});
    EXPECT_EQ(sum_over(), sum_of(2));
  });
}

TEST(ReconfigureMulti, MembersThatDisagreeGetOneErrorAndMayTryAgain) {
  const SharedScratchFolder folder;
  run_processes(3, [&](int rank) {
    const ProcessGroupGuard guard("", kPrepared);
    const std::vector<std::string> all = all_gather_object(get_reconfigure_handle());
    const std::vector<std::string> two{all[0], all[1]};
    if (rank < 2) {
      expect_error(ErrorCode::kMismatch, {"different handles", "2 members", "3 members"},
                   [&] { reconfigure({.handles = rank == 0 ? two : all, .uuid = 1}); });
      for (const auto& call : std::initializer_list<std::function<void()>>{
               [] {
                 new_group({0, 1});
               },
               [] { all_reduce(torch::ones({2})); }, [] { get_rank(); }, [] { get_world_size(); },
               [] { get_backend(); }, [] { default_group(); }}) {
        expect_error(ErrorCode::kAborted, {"in no world, because", "call reconfigure() again"}, call);
      }
      EXPECT_EQ(get_reconfigure_handle(), all[rank]);
    }
    reconfigure({.handles = all, .uuid = 2});
    EXPECT_EQ(sum_over(), sum_of(3));
    expect_error(ErrorCode::kMismatch, {"2 was already used"}, [&] { reconfigure({.handles = all, .uuid = 2}); });
    EXPECT_EQ(sum_over(), sum_of(3)) << "the world is as it was";
    const auto is_done = [&](int other) { return std::filesystem::exists(folder.path(std::to_string(other))); };
    if (rank < 2) {
      expect_error(ErrorCode::kTimeout, {"missing: rank(s) 2", "rank 2 is pid"},
                   [&] { reconfigure({.handles = all, .uuid = 3, .timeout = milliseconds(1500)}); });
    }
    std::ofstream(folder.path(std::to_string(rank)));
    EXPECT_TRUE(wait_for([&] { return is_done(0) && is_done(1); }));
  });
}

TEST(ReconfigureMulti, AllRanksMustBePrepared) {
  run_processes(2, [](int rank) {
    expect_error(ErrorCode::kMismatch, {"rank(s) 1 give(s) enable_reconfigure, and rank(s) 0 do(es) not"},
                 [&] { init_process_group("", {.timeout = seconds(60), .enable_reconfigure = rank == 1}); });
  });
}

TEST(ReconfigureMulti, OperationsUnderWayEndFirst) {
  const std::initializer_list<std::string> kPieces{"formed anew by reconfigure"};
  const SharedScratchFolder folder;
  run_processes(3, [&](int rank) {
    const ProcessGroupGuard guard("", kPrepared);
    const int next = (rank + 1) % 3;
    const Work receive = irecv(torch::ones({10}), next, {.tag = 5});
    std::thread other(
        [&] { expect_error(ErrorCode::kAborted, kPieces, [&] { recv(torch::ones({3}), next, {.tag = 6}); }); });
    testing::internal::CaptureStderr();
    if (rank == 0) {
      all_reduce_async(torch::ones({1 << 16}));
      std::ofstream(folder.path("begun"));
      std::this_thread::sleep_for(milliseconds(50));
    } else if (rank == 1) {  // waits for rank 0, which lives and calls reconfigure() first
      EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("begun")); }));
      expect_error(ErrorCode::kAborted, kPieces, [] { recv(torch::ones({3}), 0, {.tag = 7}); });
    } else {
      EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("begun")); }));
      expect_error(ErrorCode::kAborted, kPieces, [] { new_group({0, 2}); });
    }
    reconfigure();
    other.join();
    EXPECT_TRUE(receive->isCompleted());
    expect_error(ErrorCode::kAborted, kPieces, [&] { receive->wait(); });
    EXPECT_EQ(sum_over(), sum_of(3));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  });
}

TEST(ReconfigureMulti, OneThreadAtATime) {
  const SharedScratchFolder folder;
  run_processes(2, [&](int rank) {
    const ProcessGroupGuard guard("", kPrepared);
    if (rank == 0) {
      // Once more where it meets the call below, which may come first.
      std::thread first([] {
        EXPECT_TRUE(wait_for([] {
          try {
            reconfigure();
          } catch (const ArgumentError&) {
            return false;
          }
          return true;
        }));
      });
      // The first call waits for rank 1, which waits for this error.
      EXPECT_TRUE(wait_for([] {
        try {
          reconfigure({.handles = {"no handle"}});
        } catch (const ArgumentError& error) {
          return std::string(error.what()).find("another thread is inside reconfigure()") != std::string::npos;
        }
        return false;
      }));
      std::ofstream(folder.path("refused"));
      first.join();
    } else {
      EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(folder.path("refused")); }));
      reconfigure();
    }
    EXPECT_EQ(sum_over(), sum_of(2));
  });
}

// Handles and groups are from before the world was formed anew.
TEST(ReconfigureMulti, AGroupInAWorldWithOtherRanks) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard guard("", kPrepared);
    const std::vector<std::string> all = all_gather_object(get_reconfigure_handle());
    const ProcessGroup earlier = new_group({0, 1, 2});
    reconfigure({.handles = {all[2], all[1], all[0]}, .uuid = 1});
    expect_error(ErrorCode::kInvalidArgument, {"of a world that was formed anew since"},
                 [&] { reconfigure({}, earlier); });
    if (rank == 1) return;
    const ProcessGroup ends = new_group({0, 2});
    const ProcessGroup swapped = reconfigure({.handles = {all[0], all[2]}, .uuid = 2}, ends);
    EXPECT_EQ(get_process_group_ranks(swapped), (std::vector<int>{2, 0}));
    EXPECT_EQ(sum_over(swapped), sum_of(2));
    const ProcessGroup same = reconfigure({}, swapped);
    EXPECT_EQ(get_process_group_ranks(same), (std::vector<int>{2, 0}));
    EXPECT_EQ(sum_over(same), sum_of(2));
  });
}

TEST(ReconfigureMulti, TheStoresRankWaitsForTheOthersWhenItLeaves) {
  run_processes(3, [](int rank) {
    const ProcessGroupGuard guard("", kPrepared);
    reconfigure();
    if (rank == 0) return;
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_EQ(sum_over(new_group({1, 2})), sum_of(2));
  });
}

TEST(ReconfigureMulti, NothingIsLeftBehind) {
  run_processes(3, [](int) {
    const ProcessGroupGuard guard("", kPrepared);
    const auto left = [] { return std::pair(entries_of("/proc/self/fd"), entries_of("/proc/self/task")); };
    // The store of rank 0 sees connections end a moment later.
    const auto is_no_more_than = [&](std::pair<int, int> earlier) {
      // A future of an operation that was not over has a thread of the present group.
      return wait_for([&] { return left().first <= earlier.first && left().second <= earlier.second + 1; });
    };
    const auto use = [] {
      reconfigure();
      EXPECT_EQ(sum_over(), sum_of(3));
      all_reduce_async(torch::ones({3}))->getFuture()->wait();
    };
    use();
    barrier();
    const auto first = left();
    for (int i = 0; i < 10; ++i) use();
    barrier();
    EXPECT_TRUE(is_no_more_than(first)) << left().first << " descriptors, " << first.first << " before; "
                                        << left().second << " threads, " << first.second << " before";
    barrier();
  });
}

}  // namespace
}  // namespace lockstep::test
