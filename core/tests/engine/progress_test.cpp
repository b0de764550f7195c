// What moves while a rank waits for something else. Between processes, as waits of threads move one another's groups.
#include <gtest/gtest.h>

#include "engine/process_group.h"
#include "engine/progress_programs.h"
#include "support/process_ranks.h"

namespace lockstep::comm {
namespace {

TEST(ProgressMulti, WaitsMoveTheOtherGroupsToo) {
  test::run_processes(2, [](int) {
    const test::ProcessGroup first;
    const auto second = first.join("second");
    test::Program{*first, *second}.run_all();
  });
}

// A receive whose wait has failed is over: the caller may have freed its buffer.
TEST(ProgressMulti, NothingIsDeliveredToAReceiveThatHasFailed) {
  using test::Program;
  test::run_processes(2, [](int rank) {
    const test::ProcessGroup group;
    const auto meet = [&](const std::string& what) {
      Program::expect_ok(group.store().set(what + std::to_string(rank), ""));
      Program::expect_ok(group.store().wait(std::vector{what + std::to_string(1 - rank)}, Program::soon()));
    };
    if (rank == 0) {
      auto first = std::make_unique<int>(-1);
      int second = -1;
      meet("sent");
      auto a = group->start(Receive{{first.get(), sizeof(int)}, 1, 1}).value();
      auto b = group->start(Receive{{&second, sizeof second}, 1, 2}).value();
      EXPECT_EQ(a.wait(Deadline::after(std::chrono::milliseconds(50))).code(), ErrorCode::kTimeout);
      EXPECT_EQ(*first, -1);
      first.reset();
      meet("timed out");
      meet("tried to send");
      EXPECT_EQ(b.wait(Program::soon()).code(), ErrorCode::kTimeout);
      EXPECT_EQ(second, -1);
      return;
    }
    // As many as the ring holds; then the two that rank 0 wants, which cannot go before it has taken some.
    int value = 7;
    std::vector<Operation> operations;
    for (int i = 0; i < 10; ++i)
      operations.push_back(group->start(Send{{&value, sizeof value}, 0, i < 8 ? 9 : i - 7}).value());
    meet("sent");
    meet("timed out");
    EXPECT_EQ(operations.back().wait(Program::soon()).code(), ErrorCode::kTimeout);
    meet("tried to send");
  });
}

}  // namespace
}  // namespace lockstep::comm
