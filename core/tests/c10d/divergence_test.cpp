// What ranks are told when their programs go different ways: the same text on every rank, with the line of each call.
#include <gtest/gtest.h>

#include "c10d/ranks.h"

namespace lockstep::test {
namespace {

std::string at(int line) {
  return c10::str("at c10d/divergence_test.cpp:", line);
}

TEST(DivergenceMulti, ADisagreementNamesTheLineOfEachCall) {
  run_world(3, [](int rank) {
    const torch::Tensor tensor = torch::ones({10});
    expect_error(ErrorCode::kMismatch,
                 {"rank(s) 0, 2 called all_reduce of 10 float32 (sum) " + at(__LINE__ + 4),
                  "rank(s) 1 called broadcast of 40 bytes of float32 from rank 0 " + at(__LINE__ + 5)},
                 [&] {
                   if (rank != 1) {
                     all_reduce(tensor);
                   } else {
                     broadcast(tensor, 0);
                   }
                 });
    expect_error(ErrorCode::kMismatch, {"rank(s) 1 called all_reduce of 11 float32 (sum) " + at(__LINE__ + 1)},
                 [&] { all_reduce_async(torch::ones({10 + rank % 2}))->wait(); });
    const int line = __LINE__ + 1;
    const auto from = [&](int root) { broadcast(tensor, root); };
    if (rank == 0) return expect_error(ErrorCode::kInvalidArgument, {"7"}, [&] { from(7); });
    expect_error(ErrorCode::kMismatch, {"rank(s) 0 could not take part: ", "(called " + at(line)}, [&] { from(1); });
  });
}

}  // namespace
}  // namespace lockstep::test
