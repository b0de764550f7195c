// Worlds of processes for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <initializer_list>
#include <string>

#include "lockstep/c10d/distributed.h"
#ifdef LOCKSTEP_TEST_OVER_MPI
#include "support/mpirun.h"
#else
#include "support/process_ranks.h"
#endif

namespace lockstep::test {

// Runs fn(rank) in `world` processes, between init_process_group and destroy_process_group. The tests of backend mpi,
// which run some tests of this folder too, use processes of mpirun.
inline void run_world(int world, const std::function<void(int rank)>& fn, const InitOptions& options = {}) {
#ifdef LOCKSTEP_TEST_OVER_MPI
  constexpr auto kRun = run_under_mpirun;
  static constexpr auto kBackend = "mpi";
#else
  constexpr auto kRun = [](int ranks, const std::function<void(int rank)>& body) { run_processes(ranks, body); };
  static constexpr auto kBackend = "";
#endif
  kRun(world, [&](int rank) {
    ProcessGroupGuard group(kBackend, options);
    fn(rank);
  });
}

// Expects that `action` throws an exception with this code, whose text contains all of `pieces`.
inline void expect_error(ErrorCode code, std::initializer_list<std::string> pieces,
                         const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    EXPECT_EQ(to_string(error_code(error)), to_string(code)) << error.what();
    for (const std::string& piece : pieces) {
      EXPECT_NE(std::string(error.what()).find(piece), std::string::npos)
          << "expected '" << piece << "' in: " << error.what();
    }
    return;
  }
  ADD_FAILURE() << "no error";
}

inline void expect_equal(const torch::Tensor& actual, const torch::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::equal(actual, expected)) << what;
}

}  // namespace lockstep::test
