// Worlds and groups of the ranks of an MPI communicator, on the engine and on backend mpi, in programs that initialise
// and finalise MPI themselves. A start of mpirun costs 1 to 2 s, so each test makes many worlds.
#include <gtest/gtest.h>
#include <mpi.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "c10d/ranks.h"
#include "lockstep/c10d/mpi_communicator.h"
#include "lockstep/store/hash_store.h"
#include "support/mpirun.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;

constexpr const char* kEngine = "lockstep";
constexpr const char* kMpi = "mpi";

// The program's MPI.
class ProgramsMpi {
 public:
  explicit ProgramsMpi(int level) {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, level, &provided);
    EXPECT_GE(provided, level);
  }
  ~ProgramsMpi() {
    int done = 0;
    MPI_Finalized(&done);
    if (done == 0) MPI_Finalize();
  }
  ProgramsMpi(const ProgramsMpi&) = delete;
  ProgramsMpi& operator=(const ProgramsMpi&) = delete;
};

int size_of(MPI_Comm communicator) {
  int size = 0;
  MPI_Comm_size(communicator, &size);
  return size;
}

int rank_in(MPI_Comm communicator) {
  int rank = -1;
  MPI_Comm_rank(communicator, &rank);
  return rank;
}

// The ranks `color` (MPI_UNDEFINED: none), in the order of `key`.
MPI_Comm split(int color, int key) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, color, key, &part);
  return part;
}

MPI_Comm copy_of(MPI_Comm communicator) {
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_dup(communicator, &copy);
  return copy;
}

// The program's own collectives still work there, and its error handler is the one that it had.
void expect_usable(MPI_Comm communicator) {
  const int one = 1;
  int sum = 0;
  ASSERT_EQ(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, communicator), MPI_SUCCESS);
  EXPECT_EQ(sum, size_of(communicator));
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(communicator, &handler);
  EXPECT_EQ(handler, MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&handler);
}

// The world, or a group, has the ranks of the communicator in its order, and works.
void expect_ranks_of(MPI_Comm communicator, const ProcessGroup& group = nullptr) {
  const int rank = rank_in(communicator);
  const int size = size_of(communicator);
  EXPECT_EQ(get_rank(group), rank);
  EXPECT_EQ(get_world_size(group), size);
  const torch::Tensor sums = torch::full({1000}, rank + 1);
  all_reduce(sums, {.group = group});
  expect_equal(sums, torch::full({1000}, size * (size + 1) / 2), "all_reduce");
  std::vector<torch::Tensor> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(torch::zeros({1}, torch::kLong));
  all_gather(ranks, torch::full({1}, rank, torch::kLong), {.group = group});
  expect_equal(torch::cat(ranks), torch::arange(size), "all_gather");
}

void make_world(MPI_Comm communicator, const std::string& backend) {
  init_process_group(communicator, backend);
  EXPECT_EQ(get_backend(), backend);
  EXPECT_EQ(get_local_rank(), get_rank());
  expect_ranks_of(communicator);
  destroy_process_group();
  expect_usable(communicator);
}

// Groups of rows and columns of a grid, and one of some ranks in another order.
void make_groups(const std::string& backend) {
  init_process_group(MPI_COMM_WORLD, backend);
  const int rank = rank_in(MPI_COMM_WORLD);
  for (const int color : {rank / 2, rank % 2}) {
    MPI_Comm part = split(color, -rank);
    const ProcessGroup group = new_group(part);
    EXPECT_EQ(get_backend(group), backend);
    expect_ranks_of(part, group);
    MPI_Comm_free(&part);
    all_reduce(torch::ones({2}), {.group = group});
  }
  destroy_process_group();
}

void make_worlds(const std::string& backend) {
  const int rank = rank_in(MPI_COMM_WORLD);
  const int size = size_of(MPI_COMM_WORLD);
  make_world(MPI_COMM_WORLD, backend);
  make_world(MPI_COMM_WORLD, backend);
  make_world(MPI_COMM_SELF, backend);
  make_groups(backend);

  MPI_Comm backwards = split(0, -rank);
  make_world(backwards, backend);
  MPI_Comm_free(&backwards);

  MPI_Comm parity = split(rank % 2, rank);  // two worlds at a time
  make_world(MPI_Comm_f2c(MPI_Comm_c2f(parity)), backend);
  MPI_Comm_free(&parity);

  // The first rank simulates, the others train. The communicator is freed as soon as there is a world.
  MPI_Comm trainers = split(rank == 0 && size > 1 ? MPI_UNDEFINED : 0, rank);
  if (trainers != MPI_COMM_NULL) {
    const ProcessGroupGuard world(backend, {.communicator = mpi_communicator(trainers)});
    EXPECT_EQ(world.rank(), rank_in(trainers));
    MPI_Comm_free(&trainers);
    const torch::Tensor ones = torch::ones({3});
    all_reduce(ones, {.group = new_group()});
    expect_equal(ones, torch::full({3}, static_cast<float>(world.world_size())), "trainers");
  }
  expect_usable(MPI_COMM_WORLD);
}

class MpiCommunicatorMulti : public testing::TestWithParam<int> {};

// What a launcher says of other ranks does not count.
void set_misleading_variables() {
  ::setenv("RANK", "7", 1);
  ::setenv("WORLD_SIZE", "9", 1);
  ::setenv("LOCAL_RANK", "3", 1);
  ::setenv("MASTER_PORT", "1", 1);
}

TEST_P(MpiCommunicatorMulti, GivesTheEngineItsRanks) {
  run_under_mpirun(GetParam(), [](int) {
    const ProgramsMpi mpi(MPI_THREAD_SINGLE);
    set_misleading_variables();
    make_worlds(kEngine);
  });
}

TEST_P(MpiCommunicatorMulti, GivesBackendMpiItsRanks) {
  run_under_mpirun(GetParam(), [](int) {
    const ProgramsMpi mpi(MPI_THREAD_SERIALIZED);
    set_misleading_variables();
    make_worlds(kMpi);
    make_world(MPI_COMM_WORLD, kEngine);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiCommunicatorMulti, testing::Values(1, 2, 3, 4, 5));

// More than 4 KiB together would make Open MPI ask the receivers first: at 64 ranks that is 64 bytes of each.
TEST(MpiCommunicatorsMulti, TheRanksOfAMachineTellOneAnotherLittle) {
  run_under_mpirun(3, [](int) {
    const ProgramsMpi mpi(MPI_THREAD_SINGLE);
    ProgramCommunicator counting = *mpi_communicator(MPI_COMM_WORLD);
    std::vector<std::size_t> bytes;
    counting.all_gather = [&, gather = counting.all_gather](std::span<const char> own, std::span<char> all,
                                                            Deadline deadline) {
      bytes.push_back(own.size());
      return gather(own, all, deadline);
    };
    init_process_group(kEngine, {.communicator = std::make_shared<const ProgramCommunicator>(counting)});
    destroy_process_group();
    EXPECT_EQ(bytes.size(), 3U);
    for (const std::size_t each : bytes) EXPECT_LE(each, 64U);
  });
}

// Machines in name only: the engine's ranks talk through the loopback interface.
TEST(MpiCommunicatorsMulti, RanksMayBeOnSeveralMachines) {
  run_under_mpirun(5, [](int rank) {
    const ProgramsMpi mpi(MPI_THREAD_FUNNELED);
    ::setenv("LOCKSTEP_MACHINE", rank % 2 == 0 ? "even" : "odd", 1);
    init_process_group(MPI_COMM_WORLD, kEngine, {.enable_reconfigure = true});
    EXPECT_EQ(get_local_rank(), rank / 2);
    expect_ranks_of(MPI_COMM_WORLD);
    destroy_process_group();
    MPI_Comm backwards = split(0, -rank);
    init_process_group(backwards, kEngine);
    expect_ranks_of(backwards);
    destroy_process_group();
    expect_usable(backwards);
    MPI_Comm_free(&backwards);
  });
}

// Only the start needs MPI.
TEST(MpiCommunicatorsMulti, TheEngineOutlivesMpi) {
  run_under_mpirun(3, [](int rank) {
    MPI_Init(nullptr, nullptr);
    init_process_group(MPI_COMM_WORLD, kEngine);
    MPI_Finalize();
    const torch::Tensor ones = torch::ones({10});
    all_reduce(ones, {.group = new_group()});
    expect_equal(ones, torch::full({10}, 3.0), "after MPI_Finalize");
    destroy_process_group();
    expect_error(ErrorCode::kInvalidArgument, {"MPI_Finalize already"}, [] { init_process_group(MPI_COMM_WORLD); });
  });
}

TEST(MpiCommunicatorsMulti, BackendMpiSaysThatMpiIsGone) {
  run_under_mpirun(2, [](int) {
    ProgramsMpi mpi(MPI_THREAD_SERIALIZED);
    init_process_group(MPI_COMM_WORLD, kMpi);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    expect_error(ErrorCode::kAborted, {"all_reduce", "MPI was finalised"}, [] { all_reduce(torch::ones({2})); });
    destroy_process_group();
  });
}

TEST(MpiCommunicatorErrorsMulti, NameWhatIsWrong) {
  run_under_mpirun(2, [](int rank) {
    const auto refused = [](ErrorCode code, std::initializer_list<std::string> pieces, MPI_Comm communicator) {
      expect_error(code, pieces, [=] { init_process_group(communicator); });
    };
    refused(ErrorCode::kInvalidArgument, {"call MPI_Init"}, MPI_COMM_WORLD);
    const ProgramsMpi mpi(MPI_THREAD_FUNNELED);
    refused(ErrorCode::kInvalidArgument, {"MPI_COMM_NULL"}, MPI_COMM_NULL);
    MPI_Comm copy = copy_of(MPI_COMM_WORLD);
    const MPI_Comm freed = copy;
    const MPI_Fint handle = MPI_Comm_c2f(copy);
    MPI_Comm_free(&copy);
    refused(ErrorCode::kInvalidArgument, {"MPI_COMM_NULL"}, copy);
    refused(ErrorCode::kInvalidArgument, {"was freed"}, freed);
    refused(ErrorCode::kInvalidArgument, {"MPI_COMM_NULL", "was freed"}, MPI_Comm_f2c(handle));

    MPI_Comm own = split(rank, 0);
    MPI_Comm between = MPI_COMM_NULL;
    MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, 1 - rank, 0, &between);
    refused(ErrorCode::kUnsupported, {"inter-communicator", "MPI_Intercomm_merge"}, between);
    MPI_Comm_free(&between);
    MPI_Comm_free(&own);

    std::thread([&] {
      refused(ErrorCode::kUnsupported, {"MPI_THREAD_FUNNELED", "another thread"}, MPI_COMM_WORLD);
    }).join();
    expect_error(ErrorCode::kUnsupported, {"backend mpi", "MPI_THREAD_SERIALIZED", "found MPI_THREAD_FUNNELED"},
                 [] { init_process_group(MPI_COMM_WORLD, kMpi); });
    expect_error(ErrorCode::kInvalidArgument, {"not both"},
                 [] { init_process_group(MPI_COMM_WORLD, "", {.init_method = "env://"}); });
    expect_error(ErrorCode::kInvalidArgument, {"rank " + std::to_string(rank) + " of 2", "world_size"},
                 [] { init_process_group(MPI_COMM_WORLD, "", {.world_size = 3}); });
    make_world(MPI_COMM_WORLD, kEngine);

    init_process_group(MPI_COMM_WORLD, kEngine);
    expect_error(ErrorCode::kUnsupported, {"new_group", "backend mpi", "made without"},
                 [] { new_group({.backend = kMpi}); });
    expect_error(ErrorCode::kInvalidArgument, {"process group already"}, [] { init_process_group(MPI_COMM_WORLD); });
    expect_ranks_of(MPI_COMM_WORLD);
    destroy_process_group();
    expect_usable(MPI_COMM_WORLD);
  });
}

// What one rank has done wrong, all learn, and the next call works.
TEST(MpiCommunicatorErrorsMulti, ReachAllRanks) {
  run_under_mpirun(3, [](int rank) {
    const ProgramsMpi mpi(MPI_THREAD_SERIALIZED);
    const auto call = [&](const std::string& backend) { init_process_group(MPI_COMM_WORLD, backend); };
    if (rank == 1) {
      expect_error(ErrorCode::kInvalidArgument, {"unknown backend 'smoke'"}, [&] { call("smoke"); });
      init_process_group(MPI_COMM_SELF);
      expect_error(ErrorCode::kInvalidArgument, {"process group already"}, [&] { call(kEngine); });
      destroy_process_group();
    } else {
      expect_error(ErrorCode::kMismatch, {"rank(s) 1 could not take part", "smoke"}, [&] { call(kEngine); });
      expect_error(ErrorCode::kMismatch, {"rank(s) 1 could not take part", "process group already"},
                   [&] { call(kMpi); });
    }
    expect_error(ErrorCode::kMismatch, {"different backends"}, [&] { call(rank == 2 ? kMpi : kEngine); });
    expect_usable(MPI_COMM_WORLD);

    // A group whose ranks are not all in the world.
    MPI_Comm pair = split(rank == 2 ? MPI_UNDEFINED : 0, rank);
    if (rank != 2) init_process_group(pair, kEngine);
    expect_error(ErrorCode::kInvalidArgument, {"rank 2 of the communicator is in no world"},
                 [] { static_cast<void>(new_group(MPI_COMM_WORLD)); });
    if (rank != 2) destroy_process_group();

    // An error of the training ends its world alone.
    for (const std::string backend : {kEngine, kMpi}) {
      call(backend);
      if (rank == 0) abort_process_group("the loss is no number");
      // MPI cannot tell the others.
      expect_error(backend == kMpi && rank != 0 ? ErrorCode::kTimeout : ErrorCode::kAborted, {"all_reduce"},
                   [] { all_reduce(torch::ones({4}), {.timeout = milliseconds(500)}); });
      destroy_process_group();
      MPI_Barrier(MPI_COMM_WORLD);
      expect_usable(MPI_COMM_WORLD);
      make_world(MPI_COMM_WORLD, backend);
    }
    if (pair != MPI_COMM_NULL) MPI_Comm_free(&pair);
  });
}

TEST(MpiCommunicatorFault, ARankThatDoesNotComeIsATimeout) {
  run_under_mpirun(2, [](int rank) {
    const ProgramsMpi mpi(MPI_THREAD_SINGLE);
    const MPI_Comm spare = copy_of(MPI_COMM_WORLD);
    const InitOptions brief{.timeout = milliseconds(300)};
    const auto late = [&](MPI_Comm communicator) {
      expect_error(ErrorCode::kTimeout, {"not all ranks of the MPI communicator"},
                   [&] { init_process_group(communicator, kEngine, brief); });
    };
    if (rank == 0) late(MPI_COMM_WORLD);
    expect_usable(MPI_COMM_WORLD);
    if (rank == 0) {
      expect_error(ErrorCode::kAborted, {"earlier call on this communicator has timed out"},
                   [] { init_process_group(MPI_COMM_WORLD); });
    }
    // The ranks call with different communicators.
    const MPI_Comm first = copy_of(spare);
    const MPI_Comm second = copy_of(spare);
    late(rank == 0 ? first : second);
    for (const MPI_Comm each : {first, second, spare, MPI_COMM_WORLD}) expect_usable(each);
    make_world(spare, kEngine);
  });
}

}  // namespace
}  // namespace lockstep::test
