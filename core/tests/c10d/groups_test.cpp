// Groups of some of the ranks.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>

#include "c10d/ranks.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/store/hash_store.h"

namespace lockstep::test {
namespace {

// Open descriptors of this process, its mappings of shared memory, and all ranks' keys in the world's store.
std::tuple<std::ptrdiff_t, std::ptrdiff_t, std::int64_t> resources() {
  barrier();  // the clean-up after the last group is done
  const std::ptrdiff_t descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  std::ptrdiff_t mappings = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd") != std::string::npos) ++mappings;
  }
  const std::int64_t keys = default_group()->getStore()->getNumKeys();
  barrier();  // no rank makes the next group before all have counted
  return {descriptors, mappings, keys};
}

TEST(ProcessGroupLockstepTest, GoesWithItsLastOwner) {
  auto group = ProcessGroupLockstep::create(std::make_shared<comm::HashStore>(), {});
  const c10::weak_intrusive_ptr<ProcessGroupLockstep> observer(group);
  EXPECT_EQ(group.use_count(), 1U);
  c10::intrusive_ptr<c10d::Backend> other = group;
  group.reset();
  EXPECT_FALSE(observer.expired());
  other.reset();
  EXPECT_TRUE(observer.expired());
}

void check_half_of_the_world(int rank) {
  const ProcessGroup half = new_group({1, 0});
  const torch::Tensor ones = torch::ones({3});
  if (rank < 2) {
    all_reduce(ones, {.group = half});
    EXPECT_EQ(get_rank(half), rank);
    EXPECT_EQ(half->getGroupName(), "group{0,1}");
    destroy_process_group(half);
    expect_error(ErrorCode::kAborted, {"all_reduce", "left"}, [&] { all_reduce(ones, {.group = half}); });
    ones.fill_(2);
  } else {
    EXPECT_EQ(get_rank(half), -1);
    EXPECT_EQ(get_world_size(half), 2);
    expect_error(ErrorCode::kInvalidArgument, {"all_reduce", c10::str("rank ", rank), "no member", "group{0,1}"},
                 [&] { all_reduce(ones, {.group = half}); });
  }
  expect_equal(ones, torch::full({3}, rank < 2 ? 2 : 1, torch::kFloat), "half of the world");
  barrier();
}

void check_rank_translation(int rank) {
  if (rank == 0) return;
  const ProcessGroup group = new_group({3, 1, 2}, {.name = "three"});
  EXPECT_EQ(get_process_group_ranks(group), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(get_rank(group), rank - 1);
  EXPECT_EQ(get_group_rank(group, 3), 2);
  EXPECT_EQ(get_global_rank(group, 2), 3);
  expect_error(ErrorCode::kInvalidArgument, {"rank 0", "three", "1-3"}, [&] { get_group_rank(group, 0); });
  expect_error(ErrorCode::kInvalidArgument, {"group rank 3"}, [&] { get_global_rank(group, 3); });

  // `src` and the sender are ranks of the world.
  const torch::Tensor tensor = torch::full({2}, rank);
  broadcast(tensor, 3, {.group = group});
  EXPECT_EQ(tensor[0].item<int>(), 3);
  if (rank == 1) {
    const torch::Tensor received = torch::zeros({1});
    EXPECT_EQ(recv(received, kAnySource, {.group = group}), 2);
  } else if (rank == 2) {
    send(torch::ones({1}), 1, {.group = group});
  }
}

// A handle knows its members as long as it lives.
void check_left_group(int rank) {
  const ProcessGroup group = new_group({2, 3});
  if (rank >= 2) destroy_process_group(group);
  EXPECT_EQ(get_process_group_ranks(group), (std::vector<int>{2, 3}));
  if (rank < 2) return;
  EXPECT_EQ(get_group_rank(group, 3), 1);
  expect_error(ErrorCode::kAborted, {"broadcast", "left the group"},
               [&] { broadcast(torch::ones({1}), 2, {.group = group}); });
}

// Errors in a group whose ranks have other numbers in the world.
void check_errors_name_world_ranks(int rank) {
  const ProcessGroup group = new_group({1, 2}, {.name = "middle"});
  const ProcessGroup late = new_group({1, 2}, {.timeout = std::chrono::seconds(3)});  // to join, too
  const ProcessGroup lost = new_group({1, 2});
  const torch::Tensor tensor = torch::ones({3});
  if (rank == 1) {
    expect_error(ErrorCode::kInvalidArgument,
                 {"send, called on rank 1", "rank 0 of the world", "'middle'", "ranks 1,2"},
                 [&] { send(tensor, 0, {.group = group}); });
    expect_error(ErrorCode::kTimeout, {"rank 0 (rank 1 of the world)", "rank(s) 2 (", "of the world never called it"},
                 [&] { all_reduce(tensor, {.group = late}); });
    expect_error(ErrorCode::kTimeout, {"Rank 2 failed to pass monitoredBarrier"},
                 [&] { monitored_barrier({.group = lost, .timeout = std::chrono::milliseconds(300)}); });
  }
  barrier();
}

// An error has the number of the failed collective; messages have no number.
void check_numbers_in_errors(int rank) {
  const ProcessGroup group = new_group({0, 1});
  if (rank < 2) barrier({.group = group});
  if (rank == 0) {
    try {
      recv(torch::zeros({1}), 1, {.group = group, .timeout = std::chrono::milliseconds(100)});
      ADD_FAILURE() << "no error";
    } catch (const std::exception& error) {
      EXPECT_EQ(std::string(error.what()).find("recv #"), std::string::npos) << error.what();
    }
  }
  barrier();
}

void check_split(int rank) {
  // Odd and even ranks, highest first.
  const ProcessGroup parity = split_group(rank % 2, -rank);
  EXPECT_EQ(get_world_size(parity), 2);
  EXPECT_EQ(get_rank(parity), rank < 2 ? 1 : 0);
  const torch::Tensor tensor = torch::full({1}, rank);
  all_reduce(tensor, {.group = parity});
  EXPECT_EQ(tensor.item<int>(), rank % 2 == 0 ? 2 : 4);

  const ProcessGroup some = split_group(rank == 3 ? -1 : 0);
  EXPECT_EQ(get_rank(some), rank == 3 ? -1 : rank);

  const ProcessGroup pair = new_subgroups(2);
  EXPECT_EQ(get_process_group_ranks(pair), (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
  expect_error(ErrorCode::kInvalidArgument, {"new_subgroups", "3"}, [] { new_subgroups(3); });

  // The backend's own split, as LibTorch calls it.
  auto* engine = dynamic_cast<ProcessGroupLockstep*>(default_group()->getBackend(torch::kCPU).get());
  ASSERT_NE(engine, nullptr);
  const std::vector<int> sides = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
  const auto side = engine->split(nullptr, sides, engine->getBackendOptions());
  EXPECT_EQ(side->getRank(), rank % 2);
}

void check_subgroups(int rank) {
  const ProcessGroup stride = new_subgroups_by_enumeration({{2, 0}, {1, 3}});
  EXPECT_EQ(get_process_group_ranks(stride), (std::vector<int>{rank % 2, rank % 2 + 2}));
  const torch::Tensor tensor = torch::full({1}, rank);
  all_reduce(tensor, {.group = stride});
  EXPECT_EQ(tensor.item<int>(), rank % 2 == 0 ? 2 : 4);

  // Groups of unequal sizes; rank 3 is in none.
  const ProcessGroup some = new_subgroups_by_enumeration({{1}, {0, 2}}, {.name = "some"});
  EXPECT_EQ(get_rank(some), rank == 3 ? -1 : rank / 2);
  const std::array<int, 4> sizes{2, 1, 2, 0};
  EXPECT_EQ(get_world_size(some), sizes[rank]);
  if (rank == 3) {
    expect_error(ErrorCode::kInvalidArgument, {"barrier", "rank 3", "no member"}, [&] { barrier({.group = some}); });
  } else {
    barrier({.group = some});
  }
  // Parts of another group.
  if (rank > 0 && rank < 3) {
    const ProcessGroup middle = new_group({1, 2});
    EXPECT_EQ(get_process_group_ranks(new_subgroups(1, {}, middle)), std::vector<int>{rank});
    expect_error(ErrorCode::kInvalidArgument, {"new_subgroups", "group of 2"}, [&] { new_subgroups(3, {}, middle); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"no lists"}, [] { new_subgroups_by_enumeration({}); });
  expect_error(ErrorCode::kInvalidArgument, {"rank 1 is in two groups, {0,1} and {1,2}"}, [] {
    new_subgroups_by_enumeration({{0, 1}, {1, 2}});
  });
  expect_error(ErrorCode::kInvalidArgument, {"rank 4", "0 to 3"}, [] { new_subgroups_by_enumeration({{0}, {4}}); });
}

void check_group_options(int rank) {
  EXPECT_EQ(get_process_group_ranks(new_group()), (std::vector<int>{0, 1, 2, 3}));
  const ProcessGroup turned = new_group({3, 1, 0, 2}, {.sort_ranks = false});
  EXPECT_EQ(get_process_group_ranks(turned), (std::vector<int>{3, 1, 0, 2}));
  EXPECT_EQ(get_rank(turned), get_group_rank(turned, rank));
  std::vector<torch::Tensor> all(4, torch::empty({1}, torch::kInt));
  for (torch::Tensor& tensor : all) tensor = torch::empty({1}, torch::kInt);
  all_gather(all, torch::full({1}, rank, torch::kInt), {.group = turned});
  expect_equal(torch::cat(all), torch::tensor({3, 1, 0, 2}, torch::kInt), "in the order of the list");

  // A backend of its own: this one serves the CPU only.
  const ProcessGroup cpu = new_group({.timeout = std::chrono::seconds(20), .backend = "cpu:gloo"});
  EXPECT_EQ(cpu->getDeviceTypes().size(), 1U);
  EXPECT_EQ(default_group()->getDeviceTypes().size(), 2U);
  EXPECT_EQ(cpu->getBackend(torch::kCPU)->getBackendOptions()->timeout, std::chrono::seconds(20));
  const torch::Tensor tensor = torch::full({1}, rank);
  all_reduce(tensor, {.group = cpu});
  EXPECT_EQ(tensor.item<int>(), 6);

  using enum ErrorCode;
  // Members that name different backends do not wait for one another.
  expect_error(
      kMismatch,
      {"new_group at c10d/groups_test.cpp:", ": rank ", "the members name different backends",
       "'cpu:lockstep' on rank(s) 2", "'cpu:lockstep,cuda:lockstep' on rank(s) "},  // those that had come by then
      [&] { new_group({.backend = rank == 2 ? "cpu:gloo" : "lockstep"}); });
  expect_error(kMismatch,
               {"split_group", "'cpu:lockstep,cuda:lockstep' (the default) on rank(s) " + std::to_string(rank | 1)},
               [&] { split_group(rank / 2, -rank, nullptr, {.backend = rank % 2 == 1 ? "" : "cpu:gloo"}); });
  const ProcessGroup again = new_group({.backend = rank == 2 ? "" : "cuda:gloo,cpu:lockstep"});
  all_reduce(tensor, {.group = again});
  EXPECT_EQ(tensor.item<int>(), 24);

  // One that cannot take part tells the others.
  const auto one_is_wrong = [&] { new_group({.backend = rank == 1 ? "smoke" : "lockstep"}); };
  if (rank == 1) {
    expect_error(kInvalidArgument, {"new_group: unknown backend 'smoke'"}, one_is_wrong);
  } else {
    expect_error(kMismatch,
                 {"new_group at c10d/groups_test.cpp:", "rank(s) 1 could not take part", "unknown backend 'smoke'"},
                 one_is_wrong);
  }
  all_reduce(tensor, {.group = new_group()});
  EXPECT_EQ(tensor.item<int>(), 96);
  expect_error(kInvalidArgument, {"new_group: unknown backend 'smoke'"}, [] { new_group({0}, {.backend = "smoke"}); });
  expect_error(kInvalidArgument, {"split_group: unknown backend"},
               [] { split_group(0, 0, nullptr, {.backend = "smoke"}); });
  const auto of = [](const std::string& backend) { return c10::make_intrusive<c10d::Backend::Options>(backend); };
  expect_error(kInvalidArgument, {"of backend 'nccl'", "the group's is lockstep"},
               [&] { new_group({.backend_options = of("nccl")}); });
  expect_error(kInvalidArgument, {"of backend 'lockstep'", "no options of its own"},
               [&] { new_group({.backend_options = of("lockstep")}); });
}

// It tells the others, and the group after it is the next one on every rank.
void check_member_with_wrong_options(int rank) {
  const std::chrono::milliseconds timeout(rank == 1 ? 0 : 20'000);
  const std::string name = rank == 1 ? std::string(70'000, 'x') : "group";
  const auto expect_told = [rank](const std::string& caller, const char* why, const std::function<void()>& make) {
    if (rank == 1) {
      expect_error(ErrorCode::kInvalidArgument, {caller + ": ", why}, make);
    } else {
      expect_error(ErrorCode::kMismatch, {caller, "rank(s) 1 could not take part", why}, make);
    }
  };
  expect_told("new_group", "the timeout must be positive", [&] { new_group({.timeout = timeout}); });
  expect_told("split_group", "the timeout must be positive", [&] { split_group(0, 0, nullptr, {.timeout = timeout}); });
  expect_told("new_group", "the group's name has 70000 bytes", [&] { new_group({.name = name}); });
  const torch::Tensor ones = torch::ones({1});
  all_reduce(ones, {.group = new_group()});
  all_reduce(ones, {.group = split_group(0)});
  EXPECT_EQ(ones.item<int>(), 16);
}

void check_bad_groups() {
  expect_error(ErrorCode::kInvalidArgument, {"no ranks"}, [] { new_group(std::span<const int>()); });
  expect_error(ErrorCode::kInvalidArgument, {"rank 4", "0 to 3"}, [] { new_group({0, 4}); });
  expect_error(ErrorCode::kInvalidArgument, {"rank 1 is there twice"}, [] { new_group({1, 1}); });
}

void check_many_groups(int rank) {
  const auto make_one = [rank] {
    const ProcessGroup group = new_group({0, 1, 2, 3});
    const torch::Tensor tensor = torch::full({10}, rank);
    all_reduce(tensor, {.group = group});
    EXPECT_EQ(tensor[9].item<int>(), 6);
    destroy_process_group(group);
  };
  make_one();
  const auto before = resources();
  for (int i = 0; i < 200; ++i) make_one();
  EXPECT_EQ(resources(), before) << "descriptors, mappings, keys";
}

TEST(GroupsMulti, OfFourRanks) {
  run_world(4, [](int rank) {
    check_half_of_the_world(rank);
    check_rank_translation(rank);
    check_left_group(rank);
    check_errors_name_world_ranks(rank);
    check_numbers_in_errors(rank);
    check_split(rank);
    check_subgroups(rank);
    check_group_options(rank);
    check_member_with_wrong_options(rank);
    check_bad_groups();
    check_many_groups(rank);
    barrier();
  });
}

// Rank 1 never joins the group of rank 0, which leaves: the others learn why.
TEST(GroupsMulti, AMissingMemberIsTheCauseOfWhatFollows) {
  run_world(3, [](int rank) {
    if (rank == 0) {
      expect_error(
          ErrorCode::kTimeout,
          {"new_group at c10d/groups_test.cpp:", ": rank 0", "while waiting for the members", "missing: rank(s) 1"},
          [] {
            new_group({0, 1}, {.timeout = std::chrono::seconds(2)});
          });
      return destroy_process_group();
    }
    expect_error(ErrorCode::kPeerFailed, {"rank 0 cannot join group 'group{0,1}'", "missing: rank(s) 1", "left"},
                 [] { all_reduce(torch::ones({2})); });
  });
}

}  // namespace
}  // namespace lockstep::test
