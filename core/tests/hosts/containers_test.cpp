// Ranks in containers of one machine: they share memory where they can, and use the network where they cannot.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "engine/process_group.h"
#include "support/machines.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using test::Container;
using test::JobOnMachines;
using test::ProcessGroup;
using test::run_on_machines;
using User = Container::User;

// Two of its ranks, or more, each in a container.
struct Case {
  const char* name;
  std::vector<int> ranks;  // in each network
  std::vector<Container> containers;
  const char* said;  // in the line of rank 0's log
};

Container strict() {
  return {.processes = true, .ipc_and_name = true, .read_only = true, .shm = "0", .filter = LOCKSTEP_FORBID_CALLS};
}

Container as(User user) {
  Container container = strict();
  container.user = user;
  return container;
}

constexpr const char* kShared = "2 rank(s) share memory";

std::vector<Case> cases() {
  const Container plain;
  return {
      {"processes of their own", {2}, {{.processes = true}, {.processes = true}}, kShared},
      {"one in a container, one not", {2}, {plain, strict()}, kShared},
      {"read-only, no /dev/shm, names of their own, filtered calls", {2}, {strict(), strict()}, kShared},
      {"a small /dev/shm", {2}, {{.shm = "64k"}, {.shm = "64k"}}, kShared},
      {"user namespaces that number the user alike", {2}, {as(User::kRootInside), as(User::kRootInside)}, kShared},
      {"and not alike", {2}, {as(User::kRootInside), as(User::kNumberInside)}, kShared},
      {"and one has none", {2}, {strict(), as(User::kNumberInside)}, kShared},
      {"networks of their own", {1, 1}, {strict(), strict()}, "use the network: they have different networks"},
      {"two and two in networks", {2, 2}, {strict(), strict(), strict(), strict()}, "they have different networks"},
      {"a user without a number", {2}, {strict(), as(User::kNobody)}, "that its user namespace does not know"},
      {"different users, both called 0", {2}, {strict(), as(User::kOther)}, "different users (0 and 12345)"},
  };
}

void add_up(Communicator& group) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{300'000}}) {
    std::vector<float> values(count, 1.0F);
    const Status status = group.run(AllReduce{values.data(), values.data(), count}, Deadline::after(30s));
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(std::count(values.begin(), values.end(), static_cast<float>(group.group_size())),
              static_cast<std::ptrdiff_t>(count));
  }
}

TEST(ContainersMulti, RanksShareMemoryWhereTheyCanAndSayWhyWhereTheyCannot) {
  for (const Case& its : cases()) {
    SCOPED_TRACE(its.name);
    run_on_machines(
        {.ranks = its.ranks, .containers = its.containers},
        [](int) {
          const ProcessGroup group;
          add_up(*group);
        },
        [&](JobOnMachines& job) {
          const auto said = [&] { return job.process(0).err_so_far().find(its.said) != std::string::npos; };
          EXPECT_TRUE(test::wait_for(said, 30s)) << job.process(0).err_so_far() << job.process(1).err_so_far();
        });
    if (HasFailure()) return;
  }
}

#ifndef __SANITIZE_ADDRESS__  // which needs /proc itself
TEST(ContainersFault, WithoutProcAllRanksSaySo) {
  run_on_machines({.ranks = {2}, .containers = {{}, {.no_proc = true}}}, [](int) {
    try {
      const ProcessGroup group;
      ADD_FAILURE() << "the group must not exist";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("is /proc mounted?"), std::string::npos) << error.what();
    }
  });
}
#endif

TEST(ContainersFault, ARankThatDiesInAnotherContainerIsNoticed) {
  run_on_machines(
      {.ranks = {2}, .containers = {strict(), strict()}},
      [](int) {
        const ProcessGroup group;
        add_up(*group);
        std::puts("ready");
        std::fflush(stdout);
        float value = 1.0F;
        Status status;
        while (status.ok()) status = group->run(AllReduce{&value, &value, 1}, Deadline::after(20s));
        EXPECT_EQ(status.code(), ErrorCode::kPeerFailed) << status.message();
        EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
      },
      [](JobOnMachines& job) {
        for (int rank = 0; rank < 2; ++rank) {
          ASSERT_TRUE(
              test::wait_for([&] { return job.process(rank).out_so_far().find("ready") != std::string::npos; }, 30s))
              << job.process(rank).err_so_far();
        }
        job.kill(1);
      });
}

}  // namespace
}  // namespace lockstep::comm
