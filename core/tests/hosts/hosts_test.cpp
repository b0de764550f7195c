// Groups over several machines (network namespaces), each with processes of its own.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/process_group.h"
#include "engine/progress_programs.h"
#include "support/machines.h"

namespace lockstep::comm {
namespace {

using test::Machines;
using test::ProcessGroup;
using test::run_on_machines;

void expect_sum_of_ranks(Communicator& group) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{3'000}, std::size_t{1'000'000}}) {
    std::vector<float> values(count, 1.0F + static_cast<float>(group.rank()));
    const Status status =
        group.run(AllReduce{values.data(), values.data(), count}, Deadline::after(std::chrono::seconds(30)));
    ASSERT_TRUE(status.ok()) << status.message();
    const int sum_of_ranks = group.group_size() * (group.group_size() + 1) / 2;
    const auto expected = static_cast<float>(sum_of_ranks);
    ASSERT_EQ(std::count(values.begin(), values.end(), expected), static_cast<std::ptrdiff_t>(count));
  }
}

TEST(HostsMulti, WorldsOfAnyShapeMeetAndAddUp) {
  for (const std::vector<int>& ranks : {std::vector<int>{1, 1}, {1, 3}, {2, 1, 1}, {3, 3}, {1, 1, 1, 2}}) {
    run_on_machines({ranks}, [](int) {
      const ProcessGroup group;
      expect_sum_of_ranks(*group);
    });
    if (HasFailure()) return;
  }
}

TEST(HostsMulti, WaitsMoveTheOtherGroupsToo) {
  run_on_machines({{2, 1}}, [](int) {
    const ProcessGroup first;
    const auto second = first.join("second");
    for (const int receiver : {1, 2}) test::Program{*first, *second, 0, receiver}.run_all();
  });
}

TEST(HostsMulti, MeetOverIpv6) {
  run_on_machines({{2, 1}, Machines::ipv6(0)}, [](int) {
    const ProcessGroup group;
    expect_sum_of_ranks(*group);
  });
}

}  // namespace
}  // namespace lockstep::comm
