// Worlds of processes for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <initializer_list>
#include <string>

#include "lockstep/c10d/distributed.h"
#include "support/process_ranks.h"

namespace lockstep::test {

// fn(rank) in `world` processes, between init_process_group and destroy_process_group.
inline void run_world(int world, const std::function<void(int rank)>& fn, const InitOptions& options = {}) {
  run_processes(world, [&](int rank) {
    ProcessGroupGuard group("", options);
    fn(rank);
  });
}

// `action` throws an exception with this code, whose text has all the pieces.
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
