// Wrong calls: every rank gets an error that says what is wrong, and the group stays usable.
#include "lockstep/c10d/errors.h"

#include <gtest/gtest.h>

#include "c10d/ranks.h"

namespace lockstep::test {
namespace {

void expect_usable(int world) {
  const torch::Tensor tensor = torch::ones({100});
  all_reduce(tensor);
  EXPECT_EQ(tensor[99].item<float>(), static_cast<float>(world));
}

// Errors that only all ranks together can see.
void check_disagreement(int rank, int world) {
  expect_error(ErrorCode::kMismatch, {c10::str("rank ", rank, ", group 'world', all_reduce"), "rank(s) 0", "rank(s) 1"},
               [&] { all_reduce(torch::ones({10 + rank})); });
  expect_usable(world);
  expect_error(ErrorCode::kMismatch, {"all_reduce", "float32", "int32"},
               [&] { all_reduce(torch::ones({10}, rank == 1 ? torch::kInt : torch::kFloat)); });
  expect_usable(world);
  expect_error(ErrorCode::kMismatch, {"all_reduce"},
               [&] { all_reduce(torch::ones({5000}), {.op = rank == 1 ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM}); });
  expect_usable(world);
  expect_error(ErrorCode::kMismatch, {"broadcast"}, [&] { broadcast(torch::ones({10}), rank); });
  // The same number of bytes on every rank.
  const torch::Tensor typed = torch::ones({4}, rank == 0 ? torch::kInt : torch::kFloat);
  expect_error(ErrorCode::kMismatch, {"rank(s) 0 called broadcast of 16 bytes of int32", "float32"},
               [&] { broadcast(typed, 0); });
  const torch::Tensor all = torch::empty({4 * get_world_size()}, typed.options());
  expect_error(ErrorCode::kMismatch, {"all_gather of int32", "rank(s) 0"}, [&] { all_gather_into_tensor(all, typed); });
  expect_error(ErrorCode::kMismatch, {"all_to_all of float32"}, [&] { all_to_all_single(all, at::ones_like(all)); });
  expect_usable(world);
  expect_error(ErrorCode::kMismatch, {"rank"}, [&] {
    const torch::Tensor tensor = torch::ones({10});
    rank == 0 ? broadcast(tensor, 0) : all_reduce(tensor);
  });
  expect_usable(world);
  const Work work = all_reduce_async(torch::ones({10 + rank}));
  expect_error(ErrorCode::kMismatch, {"all_reduce #"}, [&] { work->wait(); });
  EXPECT_TRUE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
  EXPECT_TRUE(work->getFuture()->hasError());
  expect_usable(world);
}

// Errors that one rank sees alone: nothing has moved.
void check_arguments(int rank, int world) {
  const torch::Tensor tensor = torch::ones({4, 4});
  const auto expect_rejected = [](std::initializer_list<std::string> pieces, const std::function<void()>& action) {
    expect_error(ErrorCode::kInvalidArgument, pieces, action);
  };
  expect_error(ErrorCode::kUnsupported, {"all_reduce", "meta"}, [&] { all_reduce(tensor.to(torch::kMeta)); });
  expect_rejected({"all_reduce", "undefined"}, [] { all_reduce(torch::Tensor()); });
  expect_rejected({"broadcast", "`tensor`", "dense", "Sparse"}, [&] { broadcast(tensor.to_sparse(), rank); });
  expect_rejected({"rank " + std::to_string(rank) + ", group 'world', all_reduce", "sparse", "only SUM"},
                  [&] { all_reduce(tensor.to_sparse(), {.op = c10d::ReduceOp::MAX}); });
  expect_rejected({"all_reduce", "share memory", "clone"}, [] { all_reduce(torch::ones({1}).expand({3})); });
  expect_rejected({"all_reduce", "is not defined for", "Float8_e4m3fn"},
                  [&] { all_reduce(tensor.to(at::kFloat8_e4m3fn)); });
  expect_rejected({"broadcast", "the root", "0 to 1", "7"}, [&] { broadcast(tensor, 7); });
  expect_rejected({"all_gather", "`outputs` must have 2", "found 1"}, [&] { all_gather({tensor}, tensor); });
  expect_rejected({"all_gather", "dtype", "Float", "Long"}, [&] {
    all_gather({tensor, tensor.to(torch::kLong)}, tensor);
  });
  expect_rejected({"all_gather_into_tensor", "`output` must have 32 elements", "found 16"},
                  [&] { all_gather_into_tensor(tensor.clone(), tensor); });
  expect_rejected({"reduce_scatter_tensor", "`input`", "32"}, [&] { reduce_scatter_tensor(tensor, tensor.clone()); });
  expect_rejected({"all_to_all_single", "splits", "add up"}, [&] {
    all_to_all_single(tensor.clone(), tensor, {.output_splits = {1, 1}, .input_splits = {2, 2}});
  });
  expect_rejected({"all_to_all_single", "divide"}, [&] { all_to_all_single(torch::ones({3}), torch::ones({3})); });
  expect_rejected({"send", "tag"}, [&] { send(tensor, 1 - rank, {.tag = -1}); });
  expect_rejected({"all_gather_coalesced", "`outputs` must have 2", "found 1"},
                  [&] { all_gather_coalesced(std::vector<std::vector<at::Tensor>>{{tensor}}, tensor); });
  const auto none = std::chrono::milliseconds(0);
  expect_rejected({"all_reduce", "timeout", "positive", "0 ms"}, [&] { all_reduce(tensor, {.timeout = none}); });
  expect_rejected({"irecv", "timeout", "-5 ms"},
                  [&] { irecv(tensor, 1 - rank, {.timeout = std::chrono::milliseconds(-5)}); });
  expect_rejected({"monitored_barrier", "timeout"}, [&] { monitored_barrier({.timeout = none}); });
  expect_rejected({"new_group", "timeout"}, [&] { new_group({0, 1}, {.timeout = none}); });
  expect_usable(world);
}

TEST(ErrorsMulti, OnEveryRankAndTheGroupStaysUsable) {
  run_world(2, [](int rank) {
    check_disagreement(rank, 2);
    check_arguments(rank, 2);
  });
}

TEST(ErrorsMulti, LateRankIsNamedAndTheGroupBroken) {
  run_world(3, [](int rank) {
    const ProcessGroup group = new_group({0, 1, 2}, {.timeout = std::chrono::seconds(5)});
    if (rank != 2) {
      expect_error(ErrorCode::kTimeout, {"all_reduce", "2"}, [&] { all_reduce(torch::ones({3}), {.group = group}); });
      expect_error(ErrorCode::kTimeout, {"barrier", "2"}, [&] { barrier({.group = group}); });
    }
    for (const bool all : {false, true}) {
      const ProcessGroup another = new_group({0, 1, 2});
      if (rank != 2) {
        const std::string words = rank == 0 ? "Rank 2 failed to pass monitoredBarrier" : "successfully reached";
        expect_error(ErrorCode::kTimeout, {"monitored_barrier", words, "rank(s) 2"}, [&] {
          monitored_barrier({.group = another, .timeout = std::chrono::seconds(3), .wait_all_ranks = all});
        });
        expect_error(ErrorCode::kTimeout, {"barrier", "2"}, [&] { barrier({.group = another}); });
      }
      barrier();  // until here rank 2 stays in its group
    }
    const ProcessGroup alone = new_group({0, 1, 2});
    if (rank == 0) {
      expect_error(ErrorCode::kTimeout, {"Ranks 1, 2 failed to pass monitoredBarrier"}, [&] {
        monitored_barrier({.group = alone, .timeout = std::chrono::milliseconds(500), .wait_all_ranks = true});
      });
    }
    barrier();  // the world is another group
  });
}

TEST(ErrorsMulti, PollingEndsAtTheDeadline) {
  run_world(2, [](int rank) {
    const ProcessGroup group = new_group({0, 1});
    if (rank == 0) {
      const Work work = all_reduce_async(torch::ones({3}), {.group = group, .timeout = std::chrono::seconds(1)});
      while (!work->isCompleted()) std::this_thread::yield();
      EXPECT_FALSE(work->isSuccess());
      expect_error(ErrorCode::kTimeout, {"all_reduce #1", "rank(s) 1"}, [&] { work->wait(); });
    }
    barrier();  // the world is another group
  });
}

TEST(ErrorsMulti, LeavingAndAbortingWakeThoseWhoWait) {
  run_world(2, [](int rank) {
    const ProcessGroup left = new_group({0, 1});
    if (rank == 0) {
      destroy_process_group(left);
    } else {
      expect_error(ErrorCode::kPeerFailed, {"all_reduce", "rank 0"},
                   [&] { all_reduce(torch::ones({3}), {.group = left}); });
    }
    barrier();
    const ProcessGroup aborted = new_group({0, 1});
    if (rank == 0) {
      abort_process_group("the disk is full", aborted);
    } else {
      expect_error(ErrorCode::kAborted, {"barrier", "the disk is full"}, [&] { barrier({.group = aborted}); });
    }
    expect_error(ErrorCode::kAborted, {"all_reduce", "the disk is full"},
                 [&] { all_reduce(torch::ones({3}), {.group = aborted}); });
    barrier();
  });
}

TEST(ErrorsMulti, AnExceptionInOneRankIsKnownToTheOthers) {
  run_processes(2, [](int rank) {
    const auto train = [rank] {
      ProcessGroupGuard group;
      if (rank == 0) throw std::runtime_error("no such file");
      all_reduce(torch::ones({3}));
    };
    if (rank == 0) {
      EXPECT_THROW(train(), std::runtime_error);
    } else {
      expect_error(ErrorCode::kAborted, {"rank 0", "exception"}, train);
    }
    EXPECT_FALSE(is_initialized());
  });
}

}  // namespace
}  // namespace lockstep::test
