// Backend mpi under mpirun: groups, errors, DDP, other users of MPI in the program, lost ranks. This program also
// contains c10d/collectives_test.cpp, which tests collectives and point-to-point operations.
#include <gtest/gtest.h>
#include <mpi.h>
#include <signal.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iostream>
#include <thread>

#include "c10d/ranks.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/store/hash_store.h"
#include "support/mpirun.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;

// How errors name a line of this file.
std::string at(int line) {
  return c10::str(" at mpi/mpi_test.cpp:", line);
}

TEST(MpiGroupsMulti, AreApartAndTranslateRanks) {
  run_world(4, [](int rank) {
    EXPECT_EQ(get_backend(), "mpi");
    EXPECT_EQ(get_local_rank(), rank);
    const ProcessGroup pair = new_group({0, 1});
    const torch::Tensor ones = torch::ones({5});
    if (rank < 2) {
      EXPECT_EQ(get_backend(pair), "mpi");
      all_reduce(ones, {.group = pair});
      EXPECT_EQ(get_rank(pair), rank);
    } else {
      EXPECT_EQ(get_rank(pair), -1);
      expect_error(ErrorCode::kInvalidArgument, {"no member of group"}, [&] { all_reduce(ones, {.group = pair}); });
    }
    expect_equal(ones, torch::full({5}, rank < 2 ? 2.0 : 1.0), "world of 4, group {0,1}");

    const ProcessGroup parity = split_group(rank % 2, -rank);
    EXPECT_EQ(get_global_rank(parity, 0), rank % 2 + 2);  // the higher rank has the lower key
    const torch::Tensor number = torch::full({1}, rank);
    broadcast(number, rank % 2 + 2, {.group = parity});
    expect_equal(number, torch::full({1}, rank % 2 + 2), "odd and even");

    // Many groups, some at the same time. None leaves anything in the store.
    const auto keys = [] {
      barrier();
      const std::int64_t found = default_group()->getStore()->getNumKeys();
      barrier();
      return found;
    };
    const std::int64_t keys_before = keys();
    std::vector<ProcessGroup> kept;
    for (int i = 0; i < 60; ++i) {
      kept.push_back(new_group({0, 1, 2, 3}));
      all_reduce(torch::ones({3}), {.group = kept.back()});
      if (kept.size() == 4) {
        for (const ProcessGroup& group : kept) destroy_process_group(group);
        kept.clear();
      }
    }
    EXPECT_EQ(keys(), keys_before);
    const std::vector<int> members = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const auto half = default_group()->getBackend(torch::kCPU)->split(nullptr, members, nullptr);
    std::vector<torch::Tensor> tensors{torch::full({2}, rank)};
    half->allreduce(tensors)->wait();
    expect_equal(tensors[0], torch::full({2}, rank < 2 ? 1 : 5), "c10d's split");
  });
}

// Each backend waits for all members: they join the backends in one order.
TEST(MpiGroupsMulti, MembersMayNameBackendsInAnyOrder) {
  run_world(2, [](int rank) {
    const std::string backend = rank == 0 ? "cpu:lockstep,cuda:mpi" : "cuda:mpi,cpu:lockstep";
    const ProcessGroup group = new_group({.timeout = std::chrono::seconds(30), .backend = backend});
    const torch::Tensor ones = torch::ones({3});
    all_reduce(ones, {.group = group});
    expect_equal(ones, torch::full({3}, 2.0), "a group with two backends");
  });
}

TEST(MpiGroupsMulti, SplitsOverlapInAnyNumber) {
  run_world(3, [](int rank) {
    const auto world = default_group()->getBackend(torch::kCPU);
    const auto check = [&](std::vector<int> members) {
      if (std::count(members.begin(), members.end(), rank) == 0) return;
      std::vector<torch::Tensor> tensors{torch::ones({2})};
      world->split(nullptr, members, nullptr)->allreduce(tensors)->wait();
      expect_equal(tensors[0], torch::full({2}, 2.0), "a pair");
    };
    check({0, 1});
    check({1, 2});
    check({0, 1});
    check({0, 2});
  });
}

// Leaves in the thread that completes futures, by a call or by dropping the last handle.
TEST(MpiGroupsMulti, CallbacksMayLeaveTheGroup) {
  run_world(2, [](int rank) {
    for (const bool by_name : {true, false}) {
      ProcessGroup group = new_group({0, 1});
      if (rank == 0) {
        const torch::Tensor received = torch::zeros({1});
        const Work work = irecv(received, 1, {.group = group});
        std::promise<void> left;
        work->getFuture()->addCallback([group = std::move(group), by_name, &left](c10::ivalue::Future&) mutable {
          if (by_name) destroy_process_group(group);
          group.reset();
          left.set_value();
        });
        barrier();
        left.get_future().get();
        expect_equal(received, torch::ones({1}), "received");
      } else {
        barrier();
        send(torch::ones({1}), 0, {.group = group});
      }
      barrier();
    }
  });
}

// Rank 1 never makes the call.
TEST(MpiGroupsMulti, MayBeLeftWhileAnotherThreadIsInACall) {
  run_world(2, [](int rank) {
    for (int round = 0; round < 5; ++round) {
      const ProcessGroup group = new_group({0, 1});
      if (rank == 0) {
        auto call = std::async(std::launch::async, [&] { all_reduce(torch::ones({100'000}), {.group = group}); });
        const auto begun = [&] { return group->getBackend(c10::DeviceType::CPU)->getSequenceNumberForGroup() > 0; };
        ASSERT_TRUE(wait_for(begun));
        destroy_process_group(group);
        expect_error(ErrorCode::kAborted, {"left the group"}, [&] { call.get(); });
      }
      barrier();
    }
  });
}

TEST(MpiGroupsMulti, WorksMayBeLetGoOfAndCallbacksMayWait) {
  run_world(2, [](int) {
    std::vector<torch::Tensor> tensors;
    for (int i = 0; i < 16; ++i) {
      tensors.push_back(torch::ones({20'000, 2}).select(1, 0));
      all_reduce_async(tensors.back());
    }
    barrier_async()->getFuture()->wait();
    for (const torch::Tensor& tensor : tensors) expect_equal(tensor, torch::full({20'000}, 2.0), "dropped");

    const torch::Tensor twice = torch::ones({5});
    all_reduce_coalesced({twice, twice});
    expect_equal(twice, torch::full({5}, 2.0), "twice in a list");

    const torch::Tensor inner = torch::ones({3});
    const auto outer = all_reduce_async(torch::ones({3}))
                           ->getFuture()
                           ->then(
                               [inner](c10::ivalue::Future&) -> c10::IValue {
                                 all_reduce_async(inner)->getFuture()->waitAndThrow();
                                 return true;
                               },
                               c10::BoolType::get());
    outer->waitAndThrow();
    expect_equal(inner, torch::full({3}, 2.0), "from a callback");
  });
}

TEST(MpiErrorsMulti, NameRankAndReason) {
  run_world(2, [](int rank) {
    const torch::Tensor tensor = torch::ones({4});
    expect_error(ErrorCode::kInvalidArgument, {"rank " + std::to_string(rank), "group 'world'", "send", "0 to 1"},
                 [&] { send(tensor, 7); });
    expect_error(ErrorCode::kInvalidArgument, {"tag", "-1"}, [&] { send(tensor, 1 - rank, {.tag = -1}); });
    expect_error(ErrorCode::kInvalidArgument, {"all_reduce", "is not defined for", "Float"},
                 [&] { all_reduce(tensor, {.op = c10d::ReduceOp::BAND}); });
    expect_error(ErrorCode::kInvalidArgument, {"CPU or CUDA", "meta"}, [&] {
      std::vector<torch::Tensor> meta{tensor.to(torch::kMeta)};
      default_group()->getBackend(torch::kCPU)->allreduce(meta);
    });
    expect_error(ErrorCode::kInvalidArgument, {"share memory"}, [&] { all_reduce(torch::ones({1}).expand({4})); });
    all_reduce(tensor);
    expect_equal(tensor, torch::full({4}, 2.0), "after wrong calls");

    for (const int found : {3, 5}) {
      if (rank == 0) send(torch::ones({found}), 1);
      const auto receive = [&] { recv(tensor, 0); };
      if (rank == 0) continue;
      const std::string sizes = found == 3 ? "expected a message of 16 bytes, that of rank 0 has 12"
                                           : "expected a message of 16 bytes, that of rank 0 has more";
      expect_error(ErrorCode::kMismatch, {"rank 1", "recv", sizes}, receive);
    }
    all_reduce(tensor.fill_(1));
    expect_equal(tensor, torch::full({4}, 2.0), "after messages of the wrong size");

    // A future becomes ready by itself.
    const torch::Tensor more = torch::ones({100'000});
    const auto future = all_reduce_async(more)->getFuture();
    future->wait();
    EXPECT_FALSE(future->hasError());
    expect_equal(more, torch::full({100'000}, 2.0), "future");
  });
}

// Rank 0 goes through its test to the end, and the job fails because a group of it is broken.
void expect_failed_job() {
  const Finished end = mpirun_current_test(2);
  EXPECT_NE(end.exit_code, 0);
  EXPECT_NE(end.out.find("rank 0 has seen it all"), std::string::npos) << end.out << end.err;
}

// Rank 1 does not come: rank 0's error names it, the group is broken there, and the job fails.
TEST(MpiFault, TimeoutsNameTheMissing) {
  if (!is_mpi_rank()) return expect_failed_job();
  const ProcessGroupGuard world("mpi");
  const ProcessGroup first = new_group({0, 1});
  const ProcessGroup second = new_group({0, 1});
  const ProcessGroup third = new_group({0, 1});
  const ProcessGroup fourth = new_group({0, 1});
  if (world.rank() == 1) return barrier();
  const std::string monitored = "monitored_barrier" + at(__LINE__ + 2);
  expect_error(ErrorCode::kTimeout, {monitored, "rank(s) 1", "300 ms"},
               [&] { monitored_barrier({.group = first, .timeout = milliseconds(300)}); });
  expect_error(ErrorCode::kAborted, {"barrier" + at(__LINE__ + 1), "broken", monitored},
               [&] { barrier({.group = first}); });
  expect_error(ErrorCode::kTimeout, {"all_reduce #1" + at(__LINE__ + 1), "not done in time"},
               [&] { all_reduce(torch::ones({2}), {.group = second, .timeout = milliseconds(300)}); });
  const std::string received = "recv #1" + at(__LINE__ + 1);
  const Work message = irecv(torch::ones({2}), 1, {.group = fourth, .timeout = milliseconds(300)});
  expect_error(ErrorCode::kTimeout, {received, "not done in time"}, [&] { message->wait(); });
  // Testing ends like waiting: at the deadline, and then for all works of the group.
  const std::string reduced = "all_reduce #1" + at(__LINE__ + 1);
  const Work late = all_reduce_async(torch::ones({2}), {.group = third, .timeout = milliseconds(300)});
  const std::string waits = "recv #2" + at(__LINE__ + 1);
  const Work beside = irecv(torch::ones({2}), 1, {.group = third});
  while (!late->isCompleted()) std::this_thread::yield();
  EXPECT_TRUE(beside->isCompleted());
  expect_error(ErrorCode::kTimeout, {reduced, "not done in time"}, [&] { late->wait(); });
  expect_error(ErrorCode::kAborted, {waits, "broken", reduced + " timed out"}, [&] { beside->wait(); });
  if (!testing::Test::HasFailure()) std::cout << "rank 0 has seen it all" << std::endl;
  barrier();
}

// What one rank alone refuses. Its later calls must not meet the others' earlier ones, and the others must not wait.
TEST(MpiFault, ARefusalOfOneRankBreaksTheGroupOnAll) {
  if (!is_mpi_rank()) return expect_failed_job();
  const ProcessGroupGuard world("mpi");
  const ProcessGroup gathers = new_group({0, 1});
  const ProcessGroup scatters = new_group({0, 1});
  const ProcessGroup sums = new_group({0, 1});
  const torch::Tensor tensor = torch::ones({2});
  const int line = __LINE__ + 1;
  const auto sum = [&](const torch::Tensor& one) { all_reduce(one, {.group = sums}); };
  if (world.rank() == 1) {
    expect_error(ErrorCode::kMismatch, {"scatter", "rank(s) 0 could not take part: scatter: `inputs`"},
                 [&] { scatter(tensor, {}, 0, {.group = scatters}); });
    expect_error(ErrorCode::kInvalidArgument, {"all_reduce", "share memory"},
                 [&] { sum(torch::ones({1}).expand({2})); });
    expect_error(ErrorCode::kMismatch, {"all_reduce", "had refused"}, [&] { sum(tensor); });
    expect_error(ErrorCode::kAborted, {"broken"}, [&] { sum(tensor); });
    return barrier();
  }
  expect_error(ErrorCode::kInvalidArgument, {"gather", "`outputs` must have 2"},
               [&] { gather(tensor, {tensor}, 0, {.group = gathers}); });
  expect_error(ErrorCode::kAborted,
               {"broken", "gather #1" + at(__LINE__ - 2) + " was refused on this rank only", "`outputs` must have 2"},
               [&] { all_reduce(tensor, {.group = gathers}); });
  expect_error(ErrorCode::kInvalidArgument, {"scatter", "`inputs`"}, [&] {
    scatter(tensor, {tensor, tensor.to(torch::kLong)}, 0, {.group = scatters});
  });
  expect_error(ErrorCode::kAborted, {"broken", "was refused on this rank only"}, [&] {
    scatter(tensor, {tensor, tensor}, 0, {.group = scatters});
  });
  expect_error(ErrorCode::kMismatch,
               {"rank 0", "rank(s) 1 could not take part: all_reduce: `tensor`", "share memory", "(called" + at(line)},
               [&] { sum(tensor); });
  expect_error(ErrorCode::kAborted, {"broken", "rank(s) 1 could not take part"}, [&] { sum(tensor); });
  if (!testing::Test::HasFailure()) std::cout << "rank 0 has seen it all" << std::endl;
  barrier();
}

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(20, 30))),
        last(register_module("last", torch::nn::Linear(30, 5))) {}
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::relu(first(x))); }
  torch::nn::Linear first, last;
};

torch::Tensor train(const char* backend) {
  const ProcessGroupGuard group(backend);
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  DistributedDataParallel<std::shared_ptr<Net>> ddp(net, {.bucket_cap_mb = 0.001});
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 10; ++step) {
    torch::manual_seed(100 * step + group.rank());
    optimizer.zero_grad();
    ddp->forward(torch::randn({8, 20})).square().mean().backward();
    optimizer.step();
  }
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& parameter : net->parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

TEST(MpiTrainingMulti, ReachesTheWeightsOfTheLockstepEngine) {
  run_under_mpirun(2, [](int) { expect_equal(train("mpi"), train("lockstep"), "weights after 10 steps"); });
}

// A program that uses MPI itself, beside groups of the backend.
TEST(MpiCoexistenceMulti, ProgramThatInitialisesMpi) {
  run_under_mpirun(2, [](int rank) {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    ASSERT_GE(level, MPI_THREAD_SERIALIZED);
    for (int round = 0; round < 2; ++round) {
      const ProcessGroupGuard group("mpi");
      const torch::Tensor tensor = torch::ones({3});
      const Work work = all_reduce_async(tensor);
      int sum = 0;
      MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      EXPECT_EQ(sum, 1);
      work->wait();
      expect_equal(tensor, torch::full({3}, 2.0), "beside the program's own MPI");
    }
    MPI_Finalize();
    expect_error(ErrorCode::kAborted, {"finalised", "MPI_Finalize"}, [] {
      init_process_group("mpi", {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()});
    });
  });
}

TEST(MpiCoexistenceMulti, TooFewThreadsAreRefused) {
  run_under_mpirun(1, [](int) {
    MPI_Init(nullptr, nullptr);
    expect_error(ErrorCode::kUnsupported, {"MPI_THREAD_SERIALIZED", "MPI_THREAD_SINGLE", "MPI_Init_thread"},
                 [] { init_process_group("mpi"); });
    MPI_Finalize();
  });
}

TEST(MpiErrorsMulti, RanksAreThoseOfMpi) {
  run_under_mpirun(2, [](int rank) {
    const auto join = [] {
      const ProcessGroupGuard group("mpi", {.rank = 0, .world_size = 1, .store = std::make_shared<comm::HashStore>()});
    };
    if (rank == 0) return join();
    expect_error(ErrorCode::kInvalidArgument, {"rank 0", "rank 1 of 2", "mpirun"}, join);
  });
}

TEST(MpiFault, KilledRankEndsTheJob) {
  if (is_mpi_rank()) {
    const ProcessGroupGuard group("mpi");
    all_reduce(torch::ones({10}));
    if (group.rank() == 1) raise(SIGKILL);
    all_reduce(torch::ones({10}));
    return;
  }
  const Finished end = mpirun_current_test(2);
  EXPECT_NE(end.exit_code, 0);
  EXPECT_NE((end.out + end.err).find("signal 9"), std::string::npos) << end.out << end.err;
}

// One rank fails and leaves; the others wait for it until mpirun ends them.
TEST(MpiFault, RankThatLeavesByAnExceptionEndsTheJob) {
  if (is_mpi_rank()) {
    const ProcessGroupGuard group("mpi");
    if (group.rank() == 1) throw std::runtime_error("bad sample");
    all_reduce(torch::ones({10}));
    return;
  }
  const Finished end = mpirun_current_test(2);
  EXPECT_NE(end.exit_code, 0);
  EXPECT_NE((end.out + end.err).find("bad sample"), std::string::npos) << end.out << end.err;
}

}  // namespace
}  // namespace lockstep::test
