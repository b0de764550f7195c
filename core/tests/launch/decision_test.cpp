// Every situation of a small job over several nodes.
#include "launch/nodes/decision.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::launch {
namespace {

constexpr Cause kCauses[] = {Cause::kStart, Cause::kWorkerFailed, Cause::kNodeLost, Cause::kNodeLeft,
                             Cause::kNodeJoined};

std::vector<Situation> all_situations() {
  std::vector<Situation> all;
  for (const Cause cause : kCauses) {
    for (int flags = 0; flags < 8; ++flags) {
      for (int max = 1; max <= 3; ++max) {
        for (int min = 1; min <= max; ++min) {
          for (int nodes = 0; nodes <= max + 1; ++nodes) {
            for (int seated = 0; seated <= max; ++seated) {
              for (int max_restarts = 0; max_restarts <= 2; ++max_restarts) {
                for (int restarts = 0; restarts <= max_restarts; ++restarts) {
                  all.push_back({.cause = cause,
                                 .running = (flags & 1) != 0,
                                 .nodes = nodes,
                                 .seated = seated,
                                 .min_nodes = min,
                                 .max_nodes = max,
                                 .restarts = restarts,
                                 .max_restarts = max_restarts,
                                 .last_call_over = (flags & 2) != 0,
                                 .join_timed_out = (flags & 4) != 0});
                }
              }
            }
          }
        }
      }
    }
  }
  return all;
}

// What must hold whatever happens; the rules themselves are in the tests below.
TEST(NodeDecision, NoSituationIsForgotten) {
  for (const Situation& now : all_situations()) {
    const Decision decision = decide(now);
    EXPECT_FALSE(decision.reason.empty());
    const bool failed = now.cause == Cause::kWorkerFailed || now.cause == Cause::kNodeLost;
    switch (decision.action) {
      case Action::kStart:
        EXPECT_FALSE(now.running);
        EXPECT_GE(now.nodes, now.min_nodes);
        break;
      case Action::kRestart:
        EXPECT_TRUE(now.running);
        EXPECT_EQ(decision.uses_restart, failed);
        EXPECT_TRUE(!failed || now.restarts < now.max_restarts);
        break;
      case Action::kGiveUp:
        EXPECT_TRUE(now.running ? (failed && now.restarts == now.max_restarts) || now.nodes < now.min_nodes
                                : now.join_timed_out && now.nodes < now.min_nodes);
        break;
      case Action::kWait:
        // Something may still come: a node, or the end of a timer.
        EXPECT_TRUE(now.running ? !failed
                                : now.nodes < now.max_nodes && (!now.join_timed_out || now.nodes >= now.min_nodes));
        break;
    }
  }
}

struct Row {
  Situation now;
  Action action;
  bool uses_restart = false;
};

TEST(NodeDecision, Rules) {
  const Situation two_to_four{.min_nodes = 2, .max_nodes = 4, .max_restarts = 1};
  const auto when = [&](Cause cause, bool running, int nodes) {
    Situation now = two_to_four;
    now.cause = cause;
    now.running = running;
    now.nodes = nodes;
    now.seated = running ? nodes : 0;
    return now;
  };
  Situation last_call = when(Cause::kStart, false, 3);
  last_call.last_call_over = true;
  Situation too_late = when(Cause::kStart, false, 1);
  too_late.join_timed_out = true;
  Situation used_up = when(Cause::kWorkerFailed, true, 4);
  used_up.restarts = 1;
  Situation newcomer = when(Cause::kNodeJoined, true, 4);
  newcomer.seated = 3;
  const Row rows[] = {
      {when(Cause::kStart, false, 1), Action::kWait},
      {when(Cause::kStart, false, 3), Action::kWait},
      {last_call, Action::kStart},
      {when(Cause::kStart, false, 4), Action::kStart},
      {too_late, Action::kGiveUp},
      {when(Cause::kWorkerFailed, true, 4), Action::kRestart, true},
      {used_up, Action::kGiveUp},
      {when(Cause::kNodeLost, true, 3), Action::kRestart, true},
      {when(Cause::kNodeLost, true, 1), Action::kRestart, true},  // and waits for another
      {when(Cause::kNodeLost, false, 3), Action::kStart},         // without a last call
      {when(Cause::kNodeLost, false, 1), Action::kWait},
      {when(Cause::kNodeLeft, true, 2), Action::kRestart},
      {when(Cause::kNodeLeft, true, 1), Action::kGiveUp},
      {newcomer, Action::kRestart},
      {when(Cause::kNodeJoined, true, 4), Action::kWait},
  };
  for (const Row& row : rows) {
    const Decision decision = decide(row.now);
    EXPECT_EQ(decision.action, row.action) << decision.reason;
    EXPECT_EQ(decision.uses_restart, row.uses_restart) << decision.reason;
  }
}

}  // namespace
}  // namespace lockstep::launch
