// Ranks are killed at any time while all of them use several groups, which number their ranks differently. Every
// survivor names the dead rank first, by its number in the world. This holds for every group that it waits in, even if
// other ranks have left or ended because of the death. LOCKSTEP_TEST_KILLS says how many ranks are killed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <random>
#include <regex>

#include "engine/calls.h"
#include "support/effort.h"
#include "sweep/run.h"

namespace lockstep::test {
namespace {

using namespace comm;
using namespace std::chrono_literals;

struct Member {
  std::vector<int> ranks;  // of the world, by rank of the group
  std::unique_ptr<Communicator> group;
};

// Every rank makes those that it is in, in this order.
std::vector<std::vector<int>> groups_of(int world) {
  const int last = world - 1;
  std::vector<int> backwards;
  for (int rank = last; rank >= 0; --rank) backwards.push_back(rank);
  std::vector<std::vector<int>> groups{backwards, {last, 0}, {1, 0}, {last, 1}};
  if (world > 3) groups.push_back({2, 1, last});
  return groups;
}

// `kind` of operation in `group`, the same for all its ranks.
Status take_part(Communicator& group, int kind, Place place) {
  const Deadline deadline = Deadline::after(60s);
  Spec spec;
  spec.type = DataType::kInt32;
  spec.root = group.group_size() - 1;
  Style style{place, place, false, true};
  switch (kind) {
    case 0: return group.run(Barrier{}, deadline);
    case 1: spec.kind = Kind::kAllReduce, spec.count = 3; break;
    case 2: spec.kind = Kind::kAllReduce, spec.count = 60'000; break;
    case 3: spec.kind = Kind::kAllGather, spec.count = 20'000; break;
    case 4: spec.kind = Kind::kBroadcast, spec.count = 20'000, style.blocking = false; break;
    default: {
      std::vector<std::byte> data(5'000);
      if (group.rank() == 0) return group.run(Send{{data.data(), data.size()}, 1, 0}, deadline);
      return group.rank() == 1 ? group.run(Receive{{data.data(), data.size()}, 0, 0}, deadline) : Status();
    }
  }
  Call call(group, spec, style);
  if (style.blocking) return call.run(deadline);
  auto started = call.start();
  return started.ok() ? started->wait(deadline) : started.status();
}

void work_until_killed_or_told(const ScriptSettings& settings) {
  TcpStoreOptions store_options;
  store_options.server = {"127.0.0.1", static_cast<std::uint16_t>(settings.port)};
  const auto store = TcpStore::connect(store_options, Deadline::after(30s)).value();
  CommunicatorOptions options;
  options.arena = SharedArena::create().value();
  if (settings.machines) options.machine = fmt::format("machine{}", settings.rank / 2);
  std::vector<Member> groups;
  for (const std::vector<int>& ranks : groups_of(settings.world)) {
    Member& member = groups.emplace_back(Member{ranks, nullptr});
    const auto found = std::find(ranks.begin(), ranks.end(), settings.rank);
    if (found == ranks.end()) continue;
    options.rank = static_cast<int>(found - ranks.begin());
    options.group_size = static_cast<int>(ranks.size());
    options.name = fmt::format("group {}", groups.size());
    options.world_ranks = ranks;
    member.group = Communicator::create(store, options).value();
  }
  fmt::print("ready\n");
  std::fflush(stdout);

  std::mt19937 common(settings.passing);
  std::mt19937 own(settings.passing * 100 + settings.rank);
  Status status;
  while (status.ok()) {
    Member& member = groups[common() % groups.size()];
    const int kind = static_cast<int>(common() % 6);
    const Place place = own() % 2 == 0 ? Place::kArena : Place::kPrivate;
    if (member.group != nullptr) status = take_part(*member.group, kind, place);
  }
  const std::regex begins(fmt::format(R"(^rank {}( of the world)? \(pid [0-9]+[^)]*\) died)", settings.victim));
  EXPECT_TRUE(std::regex_search(status.message(), begins)) << status.message();
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed) << status.message();
  // Some ranks leave, in any order; others end as after an uncaught exception.
  if (own() % 4 == 0) {
    std::fflush(stdout);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  std::shuffle(groups.begin(), groups.end(), own);
  groups.clear();
}

void kill_some(bool machines) {
  if (ScriptSettings::is_rank()) return work_until_killed_or_told(ScriptSettings::of_process());
  const char* const wanted = std::getenv("LOCKSTEP_TEST_KILLS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : repetitions(machines ? 10 : 20);
  std::mt19937 random(machines ? 2 : 1);
  std::vector<ScriptSettings> scenarios;
  for (int i = 1; i <= kills; ++i) {
    ScriptSettings settings;
    settings.world = 3 + static_cast<int>(random() % 3);
    settings.victim = static_cast<int>(random() % settings.world);
    settings.machines = machines;
    settings.passing = i;
    settings.signal = SIGKILL;
    settings.kill_after = std::chrono::microseconds(1 + random() % 20'000);
    scenarios.push_back(settings);
  }
  run_all(scenarios);
}

TEST(RandomKillsFault, EverySurvivorNamesTheDeadRankOfTheWorld) {
  kill_some(/*machines=*/false);
}
TEST(RandomKillsFault, OverMachinesToo) {
  kill_some(/*machines=*/true);
}

}  // namespace
}  // namespace lockstep::test
