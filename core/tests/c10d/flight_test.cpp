// What the backends write into the flight recorder, and that c10d's hooks fire for this library's functions as for
// LibTorch's dispatcher. Each world takes some 0.2 seconds.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/call_place.h"
#include "c10d/ranks.h"
#include "flight/record.h"
#include "flight/report.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using flight::Op;
using flight::Outcome;

// A world whose recorders are files in the folder.
void run_recorded(int world, const std::filesystem::path& folder, const std::function<void(int rank)>& fn) {
  run_processes(world, [&](int rank) {
    const std::string path = folder / ("rank_" + std::to_string(rank) + ".flight");
    std::ofstream(path).close();
    setenv("LOCKSTEP_RECORDER", path.c_str(), 1);
    const ProcessGroupGuard group;
    fn(rank);
  });
}

flight::RankRecord record_in(const std::filesystem::path& folder, int rank) {
  auto record = flight::read_record(folder / ("rank_" + std::to_string(rank) + ".flight"));
  EXPECT_TRUE(record.ok()) << record.status().message();
  return record.ok() ? std::move(record).value() : flight::RankRecord();
}

std::vector<std::string> said_of(const flight::RankRecord& record) {
  std::vector<std::string> said;
  for (const flight::Operation& operation : record.operations) {
    const std::string group = operation.group < 0 ? "?" : record.groups[static_cast<std::size_t>(operation.group)].name;
    const char* const how = operation.outcome == Outcome::kDone     ? "done"
                            : operation.outcome == Outcome::kFailed ? "failed"
                                                                    : "under way";
    said.push_back(flight::describe(record, operation) + " of " + group + ", " + how);
  }
  return said;
}

class FlightMulti : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FlightMulti, testing::Values(1, 2, 3, 4));

TEST_P(FlightMulti, OperationsAreRecordedWithNumbersAndSizes) {
  const ScratchFolder folder;
  const int world = GetParam();
  run_recorded(world, folder.path(), [&](int rank) {
    all_reduce(torch::ones({10}));
    broadcast(torch::ones({3}, torch::kLong), world - 1);
    const Work work = all_reduce_async(torch::ones({200'000}));
    work->wait();
    all_gather_into_tensor(torch::empty({2 * world}), torch::ones({2}));
    all_reduce_coalesced({torch::ones({4}), torch::ones({5})});
    const torch::Tensor sparse = torch::ones({2});
    if (world > 1 && rank == 0) send(sparse, 1, {.tag = 4});
    if (world > 1 && rank == 1) recv(sparse, 0, {.tag = 4});
    barrier();
  });
  for (int rank = 0; rank < world; ++rank) {
    const flight::RankRecord record = record_in(folder.path(), rank);
    EXPECT_EQ(record.rank, rank);
    std::vector<std::string> expected{
        "all_reduce #1 (10 float32) of world, done", "broadcast #2 (3 int64) of world, done",
        "all_reduce #3 (200000 float32) of world, done",
        "all_gather_into_tensor #4 (" + std::to_string(2 * world) + " float32) of world, done",
        "all_reduce_coalesced #5 (9 float32) of world, done"};
    if (world > 1 && rank == 0) expected.emplace_back("send to rank 1, tag 4 (2 float32) of world, done");
    if (world > 1 && rank == 1) expected.emplace_back("recv from rank 0, tag 4 (2 float32) of world, done");
    expected.emplace_back("barrier #7 of world, done");
    std::vector<std::string> said = said_of(record);
    EXPECT_EQ(said, expected);
    EXPECT_EQ(record.operations[1].peer, world - 1);
    ASSERT_EQ(record.groups.size(), 1U);
    EXPECT_TRUE(record.groups[0].left);
  }
}

TEST(FlightMulti, GroupsHaveTheirOwnNumbersAndRanksOfTheWorld) {
  const ScratchFolder folder;
  run_recorded(3, folder.path(), [&](int rank) {
    const ProcessGroup pair = new_group({2, 0});
    if (rank != 1) {
      all_reduce(torch::ones({6}), {.group = pair});
      broadcast(torch::ones({6}), 0, {.group = pair});
    }
    all_reduce(torch::ones({7}));
  });
  const flight::RankRecord record = record_in(folder.path(), 0);
  ASSERT_EQ(record.groups.size(), 2U);
  EXPECT_EQ(record.groups[1].ranks.size(), 2U);
  EXPECT_EQ(record.operations.back().number, 1U);
  EXPECT_EQ(record.operations.back().group, 0);
  EXPECT_EQ(record_in(folder.path(), 1).groups.size(), 1U);
}

// By which `lockstep inspect` tells groups of one name apart.
TEST(FlightMulti, TheRanksOfAGroupRecordOneIdentity) {
  for (const char* machines : {"1", "2"}) {
    const ScratchFolder folder;
    setenv("LOCKSTEP_TEST_MACHINES", machines, 1);
    run_recorded(3, folder.path(), [&](int) {
      const ProcessGroup first = new_group({.name = "twin"});
      const ProcessGroup second = new_group({.name = "twin"});
    });
    unsetenv("LOCKSTEP_TEST_MACHINES");
    std::set<std::uint64_t> identities;
    for (int rank = 0; rank < 3; ++rank) {
      const flight::RankRecord record = record_in(folder.path(), rank);
      ASSERT_EQ(record.groups.size(), 3U);
      for (const flight::GroupInfo& group : record.groups) identities.insert(group.identity);
    }
    EXPECT_EQ(identities.size(), 3U);
    EXPECT_FALSE(identities.contains(0));
  }
}

TEST(FlightMulti, PlacesOfCallsAreRecordedAndShown) {
  const ScratchFolder folder;
  run_recorded(2, folder.path(), [&](int rank) {
    all_reduce(torch::ones({10}), {}, {"/home/me/src/train.cpp", 41});
    all_reduce(torch::ones({10}));
    {
      const CallLabel label(number_of_label("fc1: weight"));
      all_reduce(torch::ones({10}), {}, {"/home/me/src/train.cpp", 43});
    }
    barrier();
    if (rank == 1) return;
    EXPECT_ANY_THROW(all_reduce(torch::ones({10}), {.timeout = std::chrono::milliseconds(200)}, {"src/loop.cpp", 7}));
  });
  std::vector<flight::RankRecord> records;
  for (int rank = 0; rank < 2; ++rank) {
    records.push_back(record_in(folder.path(), rank));
    const auto& operations = records.back().operations;
    EXPECT_EQ(operations[0].place, "src/train.cpp:41");
    EXPECT_NE(operations[1].place.find("c10d/flight_test.cpp:"), std::string::npos) << operations[1].place;
    EXPECT_EQ(operations[2].place, "src/train.cpp:43 (fc1: weight)");
    records.back().groups[0].left = false;
  }
  const std::string text = flight::report_text(records);
  EXPECT_NE(text.find("(called at src/loop.cpp:7)"), std::string::npos) << text;
}

TEST(FlightMulti, ADisagreementIsSeenInTheRecords) {
  const ScratchFolder folder;
  run_recorded(2, folder.path(), [&](int rank) {
    all_reduce(torch::ones({10}));
    expect_error(ErrorCode::kMismatch, {"all_reduce"}, [&] { all_reduce(torch::ones({10 + rank})); });
    const auto refused = [&] {
      all_reduce(rank == 1 ? torch::ones({4}).to_sparse() : torch::ones({4}), {.op = c10d::ReduceOp::MAX});
    };
    expect_error(rank == 1 ? ErrorCode::kInvalidArgument : ErrorCode::kMismatch, {"all_reduce"}, refused);
    all_reduce(torch::ones({10}));
    std::vector<flight::RankRecord> records;
    barrier();
    for (int each = 0; each < 2; ++each) records.push_back(record_in(folder.path(), each));
    EXPECT_EQ(records[0].operations[3].number, 4U);  // the refused call has a number too
    EXPECT_EQ(records[1].operations[3].number, 4U);
    EXPECT_EQ(records[1].operations[2].op, Op::kOther);
    const std::vector<std::string> found = flight::findings(records);
    ASSERT_FALSE(found.empty());
    EXPECT_NE(found[0].find("ranks differ in collective #2: rank 0 called all_reduce (10 float32); rank 1 called "
                            "all_reduce (11 float32)"),
              std::string::npos)
        << found[0];
    barrier();
  });
}

TEST(FlightFault, AKilledRankIsNamedFromTheFilesThatAreLeft) {
  const ScratchFolder folder;
  run_processes_with_a_victim(
      3, 2,
      [&](int rank, const std::filesystem::path& report) {
        const std::string path = folder.path("rank_" + std::to_string(rank) + ".flight");
        std::ofstream(path).close();
        setenv("LOCKSTEP_RECORDER", path.c_str(), 1);
        setenv("LOCKSTEP_DUMP_DIR", folder.path("dumps").c_str(), 1);
        init_process_group();
        all_reduce(torch::ones({10}));
        if (rank == 2) raise(SIGKILL);
        try {
          all_reduce(torch::ones({10}));
        } catch (const std::exception& error) {
          std::ofstream(report) << error.what();
        }
        destroy_process_group();
      },
      [](const std::filesystem::path& report) { EXPECT_TRUE(std::filesystem::exists(report)); });
  std::vector<flight::RankRecord> records;
  for (int rank = 0; rank < 3; ++rank) records.push_back(record_in(folder.path(), rank));
  EXPECT_EQ(said_of(records[2]).back(), "all_reduce #1 (10 float32) of world, done");
  EXPECT_EQ(said_of(records[0]).back(), "all_reduce #2 (10 float32) of world, failed");
  EXPECT_FALSE(records[2].groups[0].left);
  const auto dumps = flight::dumps_in(folder.path("dumps"));
  ASSERT_TRUE(dumps.ok()) << dumps.status().message();
  EXPECT_EQ(dumps.value().size(), 2U);  // of the ranks that met the error
}

#ifdef C10D_BACKEND_HAS_HOOKS

// What a hook is told, as text.
class HookLog {
 public:
  explicit HookLog(const ProcessGroup& group) : group_(group) {
    group_->registerPreHook(1, [this](const c10d::PreHookArgs& args) {
      log_ += c10::str(static_cast<int>(args.name), args.async_op ? " async" : " blocking", " root ", args.root, " in");
      for (const auto& tensor : args.input_tensors) log_ += c10::str(" ", tensor.numel());
      log_ += " out";
      for (const auto& tensor : args.output_tensors) log_ += c10::str(" ", tensor.numel());
      log_ += "\n";
      id_ = args.op_id;
    });
    group_->registerPostHook(1, [this](const c10d::PostHookArgs& args) {
      EXPECT_EQ(args.op_id, id_);
      ++done_;
    });
  }
  ~HookLog() {
    group_->unregisterPreHook(1);
    group_->unregisterPostHook(1);
  }
  HookLog(const HookLog&) = delete;
  HookLog& operator=(const HookLog&) = delete;

  std::string take() { return std::exchange(log_, {}); }
  int done() const { return done_; }

 private:
  const ProcessGroup group_;
  std::string log_;
  std::int64_t id_ = -1;
  int done_ = 0;
};

// LibTorch's dispatcher is the judge: the same call by it and by this library tells the hooks the same.
TEST(HooksMulti, FireAsThoseOfTheDispatcher) {
  run_world(2, [](int rank) {
    const ProcessGroup group = default_group();
    HookLog hooks(group);
    using List = std::vector<at::Tensor>;
    List one{torch::ones({10})};
    List two{torch::ones({4}), torch::ones({4})};
    List both{torch::ones({2}), torch::ones({2})};
    std::vector<List> lists{both};
    List mine{torch::ones({2})};
    at::Tensor flat = torch::ones({4});
    at::Tensor half = torch::ones({2});
    const auto alike = [&](const char* what, const std::function<void()>& ours, const std::function<Work()>& theirs) {
      ours();
      const std::string by_us = hooks.take();
      theirs()->wait();
      EXPECT_EQ(by_us, hooks.take()) << what;
      EXPECT_NE(by_us, "") << what;
    };
    alike(
        "all_reduce", [&] { all_reduce_async(one[0])->wait(); }, [&] { return group->allreduce(one); });
    c10d::BroadcastOptions from;
    from.rootRank = 1;
    alike(
        "broadcast", [&] { broadcast_async(one[0], 1)->wait(); }, [&] { return group->broadcast(one, from); });
    c10d::ReduceOptions to;
    to.rootRank = 1;
    alike(
        "reduce", [&] { reduce_async(one[0], 1)->wait(); }, [&] { return group->reduce(one, to); });
    alike(
        "all_gather", [&] { all_gather_async(both, mine[0])->wait(); }, [&] { return group->allgather(lists, mine); });
    alike(
        "all_gather_into_tensor", [&] { all_gather_into_tensor_async(flat, half)->wait(); },
        [&] { return group->all_gather_single(flat, half); });
    alike(
        "reduce_scatter", [&] { reduce_scatter_async(mine[0], both)->wait(); },
        [&] { return group->reduce_scatter(mine, lists); });
    alike(
        "reduce_scatter_tensor", [&] { reduce_scatter_tensor_async(half, flat)->wait(); },
        [&] { return group->reduce_scatter_single(half, flat); });
    alike(
        "all_to_all", [&] { all_to_all_async(two, two)->wait(); }, [&] { return group->alltoall(two, two); });
    std::vector<std::int64_t> no_splits;
    alike(
        "all_to_all_single", [&] { all_to_all_single_async(flat, torch::ones({4}))->wait(); },
        [&] {
          at::Tensor input = torch::ones({4});
          return group->all_to_all_single(flat, input, no_splits, no_splits);
        });
    std::vector<List> on_root = rank == 0 ? lists : std::vector<List>();
    alike(
        "gather", [&] { gather_async(mine[0], rank == 0 ? at::TensorList(both) : at::TensorList(), 0)->wait(); },
        [&] { return group->gather(on_root, mine); });
    alike(
        "scatter", [&] { scatter_async(mine[0], rank == 0 ? at::TensorList(both) : at::TensorList(), 0)->wait(); },
        [&] { return group->scatter(mine, on_root); });
    alike(
        "barrier", [] { barrier_async()->wait(); }, [&] { return group->barrier(); });
    if (rank == 0) {
      alike(
          "send", [&] { isend(one[0], 1)->wait(); }, [&] { return group->send(one, 1, 0); });
    } else {
      alike(
          "recv", [&] { irecv(one[0], 0)->wait(); }, [&] { return group->recv(one, 0, 0); });
    }
    EXPECT_EQ(hooks.done(), 26);
    all_reduce(one[0]);
    EXPECT_NE(hooks.take().find(" blocking"), std::string::npos);
  });
}

#endif

}  // namespace
}  // namespace lockstep::test
