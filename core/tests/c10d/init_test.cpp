// Making the world, and the errors of that.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>

#include "c10d/ranks.h"
#include "lockstep/store/hash_store.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Init, WorldOfOneNeedsNothing) {
  EXPECT_TRUE(is_available());
  EXPECT_TRUE(is_available("gloo"));
  EXPECT_FALSE(is_available("smoke"));
  EXPECT_FALSE(is_initialized());
  {
    const ProcessGroupGuard group;
    EXPECT_TRUE(is_initialized());
    EXPECT_EQ(group.rank(), 0);
    EXPECT_EQ(group.world_size(), 1);
    EXPECT_EQ(get_local_rank(), 0);
    EXPECT_EQ(get_backend(), "lockstep");
    EXPECT_TRUE(local_device().is_cpu());
    const torch::Tensor tensor = torch::ones({3});
    all_reduce(tensor);
    expect_equal(tensor, torch::ones({3}), "world of one");
  }
  EXPECT_FALSE(is_initialized());
}

TEST(Init, UseBeforeAndAfterSaysWhatToCall) {
  const auto expect_refused = [] {
    const std::string advice = "call init_process_group first";
    const torch::Tensor tensor = torch::ones({3});
    expect_error(ErrorCode::kInvalidArgument, {"all_reduce", advice}, [&] { all_reduce(tensor); });
    expect_error(ErrorCode::kInvalidArgument, {"barrier", advice}, [] { barrier(); });
    expect_error(ErrorCode::kInvalidArgument, {"send", advice}, [&] { send(tensor, 0); });
    expect_error(ErrorCode::kInvalidArgument, {"get_rank", advice}, [] { get_rank(); });
    expect_error(ErrorCode::kInvalidArgument, {"new_group", advice}, [] { new_group({0}); });
    expect_error(ErrorCode::kInvalidArgument, {"get_local_rank", advice}, [] { get_local_rank(); });
  };
  expect_refused();
  init_process_group();
  const ProcessGroup kept = default_group();
  destroy_process_group();
  destroy_process_group();
  expect_refused();
  expect_error(ErrorCode::kInvalidArgument, {"call init_process_group first"},
               [&] { all_reduce(torch::ones({3}), {.group = kept}); });
}

TEST(Init, BackendNames) {
  for (const char* name : {"lockstep", "gloo", "cpu:lockstep", "cpu:gloo"}) {
    const ProcessGroupGuard group(name);
    EXPECT_EQ(get_backend(), "lockstep") << name;
  }
  expect_error(ErrorCode::kInvalidArgument, {"unknown backend 'smoke'", "lockstep", "gloo"},
               [] { init_process_group("smoke"); });
  expect_error(ErrorCode::kInvalidArgument, {"cpu or cuda", "'gpu'"}, [] { init_process_group("gpu:lockstep"); });
  expect_error(ErrorCode::kInvalidArgument, {"two backends for cpu tensors"},
               [] { init_process_group("cpu:lockstep,cpu:gloo"); });
#ifdef LOCKSTEP_HAS_NCCL
  expect_error(ErrorCode::kUnsupported, {"'nccl' serves CUDA tensors", "'cpu'"},
               [] { init_process_group("cpu:nccl,cuda:nccl"); });
#else
  expect_error(ErrorCode::kUnsupported, {"nccl", "not part of this build"},
               [] { init_process_group("cpu:lockstep,cuda:nccl"); });
#endif
#ifndef LOCKSTEP_HAS_MPI
  expect_error(ErrorCode::kUnsupported, {"mpi", "not part of this build", "libopenmpi-dev"},
               [] { init_process_group("mpi"); });
#endif
  EXPECT_FALSE(is_initialized());
}

#ifdef LOCKSTEP_HAS_NCCL
// With GPUs this test uses them; without, backend nccl must say what is missing.
TEST(Init, NcclIsThereOrSaysWhatIsMissing) {
  if (torch::cuda::is_available()) {
    const ProcessGroupGuard group("cpu:lockstep,cuda:nccl");
    EXPECT_EQ(get_backend(), "cpu:lockstep,cuda:nccl");
    return;
  }
  for (const char* name : {"nccl", "cpu:lockstep,cuda:nccl"}) {
    expect_error(ErrorCode::kUnsupported, {"backend nccl", "no GPU", "CUDA_VISIBLE_DEVICES"},
                 [&] { init_process_group(name); });
    EXPECT_FALSE(is_initialized());
  }
}
#endif

TEST(Init, WrongOptions) {
  expect_error(ErrorCode::kInvalidArgument, {"timeout"}, [] { init_process_group("", {.timeout = milliseconds(0)}); });
  const auto store = std::make_shared<comm::HashStore>();
  expect_error(ErrorCode::kInvalidArgument, {"rank and world_size"}, [&] { init_process_group("", {.store = store}); });
  expect_error(ErrorCode::kInvalidArgument, {"not both"},
               [&] { init_process_group("", {.init_method = "env://", .rank = 0, .world_size = 1, .store = store}); });
  expect_error(ErrorCode::kInvalidArgument, {"init_process_group", "backend_options", "'nccl'"}, [] {
    init_process_group("gloo", {.backend_options = c10::make_intrusive<c10d::Backend::Options>("nccl")});
  });
  expect_error(ErrorCode::kInvalidArgument, {"gopher"},
               [] { init_process_group("", {.init_method = "gopher://x", .rank = 0, .world_size = 2}); });
  const ProcessGroupGuard group("", {.rank = 0, .world_size = 1, .store = store});
  expect_error(ErrorCode::kInvalidArgument, {"already", "destroy_process_group"}, [] { init_process_group(); });
  EXPECT_TRUE(is_initialized());
}

TEST(InitMulti, MissingRankIsNamedWithThoseWhoCame) {
  run_processes(2, [](int rank) {
    if (rank == 1) return;
    // Three ranks are expected, one comes.
    setenv("WORLD_SIZE", "3", 1);
    expect_error(ErrorCode::kTimeout, {"init_process_group", "rank", "1", "2"},
                 [] { init_process_group("", {.timeout = seconds(3)}); });
    EXPECT_FALSE(is_initialized());
  });
}

TEST(InitMulti, RankTwiceIsAnErrorOnEveryRank) {
  run_processes(3, [](int rank) {
    if (rank == 2) setenv("RANK", "1", 1);
    expect_error(ErrorCode::kMismatch, {"init_process_group", "rank 1"},
                 [] { init_process_group("", {.timeout = seconds(20)}); });
  });
}

// Each would wait for the others in its own backend.
TEST(InitMulti, DifferentBackendsAreNamedOnEveryRank) {
  run_processes(3, [](int rank) {
    expect_error(ErrorCode::kMismatch,
                 {"init_process_group: rank " + std::to_string(rank), "name different backends",
                  "'cpu:lockstep' on rank(s) 2", "'cpu:lockstep,cuda:lockstep' on rank(s) "},
                 [&] { init_process_group(rank == 2 ? "cpu:gloo" : "lockstep"); });
    EXPECT_FALSE(is_initialized());
    const ProcessGroupGuard group(rank == 2 ? "" : "lockstep", {.timeout = seconds(50)});  // the same by another name
    barrier();
    EXPECT_EQ(default_group()->getBackend(torch::kCPU)->getBackendOptions()->timeout, seconds(50));
  });
}

TEST(InitMulti, ARankWhoseCallIsWrongTellsTheOthers) {
  for (const int wrong : {0, 2}) {
    run_processes(3, [wrong](int rank) {
      const auto join = [&] { init_process_group(rank == wrong ? "smoke" : ""); };
      if (rank == wrong) {
        expect_error(ErrorCode::kInvalidArgument, {"init_process_group: unknown backend 'smoke'"}, join);
      } else {
        expect_error(ErrorCode::kMismatch,
                     {"init_process_group: rendezvous of rank",
                      "rank " + std::to_string(wrong) + " could not take part", "unknown backend 'smoke'"},
                     join);
      }
      const ProcessGroupGuard group;
      barrier();
    });
  }
}

TEST(InitMulti, AgainAndAgain) {
  run_processes(2, [](int rank) {
    for (int i = 0; i < 5; ++i) {
      const ProcessGroupGuard group("gloo", {.timeout = seconds(30)});
      const torch::Tensor tensor = torch::full({1}, rank);
      all_reduce(tensor);
      EXPECT_EQ(tensor.item<int>(), 1);
      EXPECT_EQ(get_local_rank(), rank);
    }
  });
}

void leave_launcher() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"}) {
    unsetenv(name);
  }
}

// Two machines with two and one ranks, as mpirun describes them, for a program that uses a file.
TEST(InitMulti, LocalRankFromMpirunBesideAFile) {
  const SharedScratchFolder folder;
  run_processes(3, [&folder](int rank) {
    leave_launcher();
    const std::string local = rank == 1 ? "1" : "0";
    setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", local.c_str(), 1);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", rank == 2 ? "1" : "2", 1);
    const ProcessGroupGuard group("", {.init_method = "file://" + folder.path("world"), .rank = rank, .world_size = 3});
    EXPECT_EQ(std::to_string(get_local_rank()), local);
  });
}

// Nothing tells the local ranks: the ranks find them out.
TEST(InitMulti, LocalRankFromTheMachines) {
  const SharedScratchFolder folder;
  run_processes(3, [&folder](int rank) {
    leave_launcher();
    const ProcessGroupGuard group("",
                                  {.init_method = "file://" + folder.path("world"), .rank = 2 - rank, .world_size = 3});
    EXPECT_EQ(get_local_rank(), 2 - rank);
  });
}

// Two worlds of the same ranks at the same time, each with a file of its own.
TEST(InitMulti, TwoJobsAtOnce) {
  const SharedScratchFolder folder;
  run_processes(4, [&folder](int rank) {
    const int job = rank / 2;
    const std::string path = folder.path("job" + std::to_string(job));
    InitOptions options{.init_method = "file://" + path, .rank = rank % 2, .world_size = 2};
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) unsetenv(name);
    const ProcessGroupGuard group("", options);
    const torch::Tensor tensor = torch::full({1000}, job + 1);
    for (int i = 0; i < 100; ++i) all_reduce(tensor.fill_(job + 1));
    EXPECT_EQ(tensor[999].item<int>(), 2 * (job + 1));
  });
}

}  // namespace
}  // namespace lockstep::test
