// What launchers make of the events of a job, without any launcher.
#include "launch/nodes/job_state.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::launch {
namespace {

NodeInfo node(const std::string& id, int node_rank = -1, int workers = 1) {
  return {.id = id,
          .node_rank = node_rank,
          .workers = workers,
          .host = "host_" + id,
          .pid = 7,
          .version = "1",
          .command = "./train",
          .min_nodes = 2,
          .max_nodes = 2};
}

class Job {
 public:
  explicit Job(int min_nodes = 2, int max_nodes = 2, int max_restarts = 0)
      : min_(min_nodes), max_(max_nodes), restarts_(max_restarts) {}

  void join(NodeInfo info) {
    info.min_nodes = min_;
    info.max_nodes = max_;
    info.max_restarts = restarts_;
    apply({.kind = EventKind::kJoin, .node = info.id, .info = info});
  }
  void happens(EventKind kind, const std::string& node, int number = 0) {
    apply({.kind = kind, .node = node, .number = number});
  }
  // The first node says where the store of this attempt is.
  void run() { happens(EventKind::kServices, state.members().front().info.id, state.attempt()); }
  void fails(const std::string& node) {
    Event event{.kind = EventKind::kFailed, .node = node, .number = state.attempt()};
    event.failure.exit.code = 5;
    apply(event);
  }
  void all_stop() {
    std::vector<std::string> ids;
    for (const Member& member : state.members()) ids.push_back(member.info.id);
    for (const std::string& id : ids) happens(EventKind::kStopped, id, state.attempt());
  }
  // The nodes of the attempt in the order of their ranks.
  std::string order() const {
    std::string text;
    for (const Member& member : state.members()) text += member.info.id;
    return text;
  }
  // Every event goes over the wire once.
  void apply(const Event& event) {
    const auto read = decode_event(encode(event));
    ASSERT_TRUE(read.ok()) << read.status().message();
    state.apply(read.value());
  }

  JobState state;

 private:
  int min_, max_, restarts_;
};

TEST(JobState, SaysForWhichNodesItWaits) {
  Job job(3, 3);
  EXPECT_EQ(job.state.waits_for(), "");
  job.join(node("b", 1));
  EXPECT_EQ(job.state.waits_for(), "2 of 3 nodes, missing: node 0, 2");
  job.join(node("c", 2));
  EXPECT_EQ(job.state.waits_for(), "1 of 3 nodes, missing: node 0");
  job.join(node("a", 0));
  EXPECT_EQ(job.state.waits_for(), "");
  Job elastic(2, 4);
  elastic.join(node("a"));
  EXPECT_EQ(elastic.state.waits_for(), "1 of 2 nodes");
  elastic.join(node("b"));
  EXPECT_EQ(elastic.state.waits_for(), "more nodes, up to 4, until last_call_timeout is over");
}

TEST(JobState, RanksFollowTheNodesNumbersWhateverTheyCameIn) {
  Job job(3, 3);
  job.join(node("c", 2, 1));
  job.join(node("a", 0, 2));
  EXPECT_EQ(job.state.phase(), Phase::kGathering);
  job.join(node("b", 1, 3));
  EXPECT_EQ(job.state.phase(), Phase::kStarting);
  EXPECT_EQ(job.order(), "abc");
  EXPECT_EQ(job.state.world_size(), 6);
  EXPECT_EQ(job.state.first_rank(0), 0);
  EXPECT_EQ(job.state.first_rank(1), 2);
  EXPECT_EQ(job.state.first_rank(2), 5);
}

TEST(JobState, WithoutNumbersTheNodeThatServesIsFirst) {
  Job job(3, 3);
  job.join(node("a"));
  NodeInfo server = node("h");
  server.serves = true;
  job.join(server);
  job.join(node("b"));
  EXPECT_EQ(job.order(), "hab");
}

TEST(JobState, EndsWhenAllAreDone) {
  Job job;
  job.join(node("a"));
  job.join(node("b"));
  job.run();
  job.happens(EventKind::kDone, "a");
  job.happens(EventKind::kLost, "a");  // a launcher may go when its workers are done
  EXPECT_EQ(job.state.phase(), Phase::kRunning);
  job.happens(EventKind::kDone, "b");
  EXPECT_EQ(job.state.phase(), Phase::kOver);
  EXPECT_EQ(job.state.outcome().code, 0);
}

TEST(JobState, TheFirstFailureCounts) {
  Job job;
  job.join(node("a"));
  job.join(node("b"));
  job.run();
  job.fails("b");
  job.fails("a");
  EXPECT_EQ(job.state.phase(), Phase::kOver);
  EXPECT_EQ(job.state.outcome().code, 5);
  EXPECT_EQ(job.state.outcome().failure->node_rank, 1);
}

TEST(JobState, ARestartWaitsUntilAllHaveStopped) {
  Job job(2, 2, 1);
  job.join(node("a"));
  job.join(node("b"));
  job.run();
  job.fails("b");
  EXPECT_EQ(job.state.phase(), Phase::kStopping);
  job.happens(EventKind::kStopped, "a");
  EXPECT_EQ(job.state.phase(), Phase::kStopping);
  job.happens(EventKind::kStopped, "b");
  EXPECT_EQ(job.state.phase(), Phase::kStarting);
  EXPECT_EQ(job.state.attempt(), 1);
  EXPECT_EQ(job.state.restarts(), 1);
  job.fails("a");  // news of the attempt before
  EXPECT_EQ(job.state.phase(), Phase::kStarting);
}

TEST(JobState, ALostNodeIsReplaced) {
  Job job(2, 2, 1);
  job.join(node("a", 0));
  job.join(node("b", 1));
  job.run();
  job.happens(EventKind::kLost, "b");
  job.all_stop();
  EXPECT_EQ(job.state.phase(), Phase::kGathering);
  ASSERT_TRUE(job.state.timer().has_value());
  job.join(node("d", 1));
  EXPECT_EQ(job.state.phase(), Phase::kStarting);
  EXPECT_EQ(job.order(), "ad");
}

// The scheduler may be faster than the store that notices the loss.
TEST(JobState, TheReplacementMayComeBeforeTheLossIsKnown) {
  Job job(2, 2, 1);
  job.join(node("a", 0));
  job.join(node("b", 1));
  job.run();
  job.join(node("d", 1));
  EXPECT_EQ(job.state.phase(), Phase::kRunning);
  EXPECT_FALSE(job.state.refusal("d").has_value());
  job.happens(EventKind::kLost, "b");
  job.all_stop();
  EXPECT_EQ(job.order(), "ad");
  EXPECT_EQ(job.state.phase(), Phase::kStarting);
}

TEST(JobState, ElasticJobsShrinkAndGrow) {
  Job job(1, 3, 1);
  job.join(node("a"));
  job.join(node("b"));
  EXPECT_EQ(job.state.phase(), Phase::kGathering);
  job.happens(EventKind::kTimer, "a", job.state.timer()->epoch);
  ASSERT_EQ(job.state.phase(), Phase::kStarting);
  job.run();
  job.happens(EventKind::kLost, "a");
  job.all_stop();
  EXPECT_EQ(job.order(), "b");
  job.run();
  job.join(node("c"));
  EXPECT_EQ(job.state.phase(), Phase::kStopping);
  job.all_stop();
  EXPECT_EQ(job.order(), "bc");
  EXPECT_EQ(job.state.attempt(), 2);
  EXPECT_EQ(job.state.restarts(), 1);
  job.run();
  job.happens(EventKind::kLeave, "c", 15);
  job.all_stop();
  EXPECT_EQ(job.order(), "b");
  EXPECT_EQ(job.state.restarts(), 1);
}

TEST(JobState, ANodeNumberTwiceDoesNotRestartAJobThatHasRoom) {
  Job job(1, 3, 1);
  job.join(node("a", 0));
  job.join(node("b", 1));
  job.happens(EventKind::kTimer, "a", job.state.timer()->epoch);
  job.run();
  job.join(node("c", 1));
  EXPECT_EQ(job.state.phase(), Phase::kRunning);
  job.fails("b");
  job.all_stop();
  EXPECT_EQ(job.state.attempt(), 1);
  job.run();
  EXPECT_EQ(job.state.phase(), Phase::kRunning);
  EXPECT_EQ(job.order(), "ab");
  // The other one with this number takes its place.
  job.happens(EventKind::kLeave, "b", 15);
  job.all_stop();
  EXPECT_EQ(job.order(), "ac");
}

TEST(JobState, ANodeThatIsNeededAndLeavesEndsTheJob) {
  Job job(2, 2, 3);
  job.join(node("a"));
  job.join(node("b"));
  job.run();
  job.happens(EventKind::kLeave, "b", 15);
  EXPECT_EQ(job.state.phase(), Phase::kOver);
  EXPECT_EQ(job.state.outcome().code, 128 + 15);
  EXPECT_NE(job.state.outcome().reason.find("host_b"), std::string::npos);
}

TEST(JobState, ANodeThatCannotRunTheProgramIsRefusedByAJobThatCanDoWithoutIt) {
  Job job(1, 2);
  job.join(node("a"));
  job.happens(EventKind::kTimer, "a", job.state.timer()->epoch);
  job.run();
  job.join(node("b"));
  job.all_stop();
  job.run();
  job.happens(EventKind::kUnable, "b", job.state.attempt());
  EXPECT_EQ(job.state.phase(), Phase::kStopping);
  EXPECT_TRUE(job.state.refusal("b").has_value());
  job.all_stop();
  EXPECT_EQ(job.state.phase(), Phase::kStarting);
  EXPECT_EQ(job.order(), "a");
  job.happens(EventKind::kUnable, "a", job.state.attempt());
  EXPECT_EQ(job.state.phase(), Phase::kOver);
}

TEST(JobState, OldTimersDoNotCount) {
  Job job(2, 3);
  job.join(node("a"));
  const int old = job.state.timer()->epoch;
  job.join(node("b"));
  job.happens(EventKind::kTimer, "a", old);
  EXPECT_EQ(job.state.phase(), Phase::kGathering);
  job.happens(EventKind::kTimer, "a", job.state.timer()->epoch);
  EXPECT_EQ(job.state.phase(), Phase::kStarting);
}

// Two jobs with one id: the second must not end well without having run.
TEST(JobState, WhoNeverGotAPlaceIsRefusedAtTheEnd) {
  Job job(2, 2, 1);
  for (const char* id : {"a", "b", "c"}) job.join(node(id));
  EXPECT_FALSE(job.state.refusal("c").has_value());
  job.run();
  job.happens(EventKind::kDone, "a");
  job.happens(EventKind::kDone, "b");
  EXPECT_EQ(job.state.outcome().code, 0);
  ASSERT_TRUE(job.state.refusal("c").has_value());
  EXPECT_NE(job.state.refusal("c")->find("has run nothing"), std::string::npos);
  EXPECT_FALSE(job.state.came_too_late("c"));  // a spare must not run the job again
}

TEST(JobState, AJobThatCanLoseNoNodeTakesNoOther) {
  Job fixed;
  Job elastic(1, 2);
  for (Job* job : {&fixed, &elastic}) {
    for (const char* id : {"a", "b", "c"}) job->join(node(id));
    EXPECT_EQ(job->state.phase(), Phase::kStarting);
  }
  ASSERT_TRUE(fixed.state.refusal("c").has_value());
  EXPECT_NE(fixed.state.refusal("c")->find("host_a"), std::string::npos);
  EXPECT_FALSE(elastic.state.refusal("c").has_value());  // a node may leave
}

// Killed at any time: before they were enough, while workers ran, with and without restarts.
TEST(JobState, WhoComesAfterAllWereLostBeginsAnotherJob) {
  for (const bool outlives : {true, false}) {
    for (const int launchers : {1, 2}) {
      for (const int restarts : {0, 2}) {
        Job job(2, 2, restarts);
        for (int i = 0; i < launchers; ++i) job.join(node(std::string(1, static_cast<char>('a' + i))));
        if (launchers == 2) job.run();
        for (int i = 0; i < launchers; ++i) job.happens(EventKind::kLost, std::string(1, static_cast<char>('a' + i)));
        for (const char* id : {"n", "m"}) {  // the first of them begins it, the second follows
          NodeInfo info = node(id);
          info.store_outlives_job = outlives;
          job.join(info);
          const bool over = launchers == 2 && restarts == 0;
          EXPECT_EQ(job.state.came_too_late(id), outlives || over) << launchers << restarts;
        }
      }
    }
  }
}

// `--hosts` ends its job before a slow ssh has started its launcher. Another id or endpoint would not help.
TEST(JobState, WhoComesAfterTheJobWasCalledOffHearsOnlyWhy) {
  for (const bool first_came : {false, true}) {
    Job job;
    if (first_came) job.join(node("a"));
    job.state.apply({.kind = EventKind::kEnd, .node = "hosts", .text = "asked to end", .code = 130});
    job.join(node("b"));
    EXPECT_EQ(job.state.outcome().code, 130);
    EXPECT_EQ(job.state.refusal("b"), "the job has ended already: asked to end");
  }
}

TEST(JobState, EachRoleHasItsRanks) {
  Job job(3, 3);
  for (int i = 0; i < 3; ++i) {
    NodeInfo info = node(std::string(1, static_cast<char>('a' + i)), i, i + 1);
    info.role = i == 1 ? "reader" : "trainer";
    job.join(info);
  }
  const auto ranks = [&](int rank) {
    const RoleRanks found = job.state.role_ranks(rank);
    return std::pair(found.first, found.of);
  };
  EXPECT_EQ(ranks(0), std::pair(0, 4));
  EXPECT_EQ(ranks(1), std::pair(0, 2));
  EXPECT_EQ(ranks(2), std::pair(1, 4));
}

TEST(JobState, TooFewNodesAreNamed) {
  Job job;
  job.join(node("a", 0));
  job.happens(EventKind::kTimer, "a", job.state.timer()->epoch);
  EXPECT_EQ(job.state.phase(), Phase::kOver);
  EXPECT_EQ(job.state.outcome().code, 1);
  EXPECT_NE(job.state.outcome().reason.find("1 node of at least 2"), std::string::npos) << job.state.outcome().reason;
  EXPECT_NE(job.state.outcome().reason.find("host_a"), std::string::npos);
}

TEST(JobState, NodesThatDoNotBelongTogether) {
  NodeInfo other_version = node("b");
  other_version.version = "2";
  NodeInfo other_command = node("b");
  other_command.command = "./train --lr 2";
  NodeInfo other_grace = node("b");
  other_grace.grace_ms = 60'000;
  NodeInfo other_silence = node("b");
  other_silence.silence_ms = 2500;
  NodeInfo no_program = node("b");
  no_program.problem = "there is no file './train'";
  no_program.problem_code = 127;
  const std::tuple<NodeInfo, const char*, int> cases[] = {{other_version, "Lockstep '2'", 1},
                                                          {other_command, "the program './train --lr 2'", 1},
                                                          {other_grace, "--grace '60 s'", 1},
                                                          {other_silence, "silence '2.5 s'", 1},
                                                          {no_program, "no file './train'", 127}};
  for (const auto& [info, words, code] : cases) {
    // A job of a fixed size cannot start, and all nodes hear why.
    Job fixed;
    fixed.join(node("a"));
    fixed.join(info);
    EXPECT_EQ(fixed.state.phase(), Phase::kOver);
    EXPECT_EQ(fixed.state.outcome().code, code);
    EXPECT_NE(fixed.state.outcome().reason.find(words), std::string::npos) << fixed.state.outcome().reason;
    EXPECT_NE(fixed.state.outcome().reason.find("host_b"), std::string::npos) << fixed.state.outcome().reason;
    // One that can do without goes on.
    Job elastic(1, 3);
    elastic.join(node("a"));
    elastic.join(info);
    EXPECT_EQ(elastic.state.phase(), Phase::kGathering);
    ASSERT_TRUE(elastic.state.refusal("b").has_value());
    EXPECT_NE(elastic.state.refusal("b")->find(words), std::string::npos);
  }
}

TEST(JobState, ANodeNumberTwiceIsRefusedWithBothNames) {
  Job job(3, 3);
  job.join(node("a", 0));
  job.join(node("b", 0));
  EXPECT_EQ(job.state.phase(), Phase::kGathering);
  ASSERT_TRUE(job.state.refusal("b").has_value());
  EXPECT_NE(job.state.refusal("b")->find("host_a"), std::string::npos);
}

TEST(NodeEvents, WhatIsNoEventIsRefused) {
  for (const char* text : {"", "{}", "[1]", "{\"kind\":99,\"node\":\"a\"}", "{\"kind\":\"x\",\"node\":\"a\"}",
                           "{\"kind\":0,\"node\":\"a\"}", "{\"kind\":0,\"node\":\"a\",\"info\":{\"workers\":\"x\"}}"}) {
    EXPECT_EQ(decode_event(text).status().code(), ErrorCode::kCorrupt) << text;
  }
}

TEST(NodeEvents, NumbersThatNoLauncherSendsAreRefused) {
  const auto join = [](const NodeInfo& info) { return Event{.kind = EventKind::kJoin, .node = "a", .info = info}; };
  const auto event = [](EventKind kind, int number) { return Event{.kind = kind, .node = "a", .number = number}; };
  EXPECT_TRUE(decode_event(encode(join({.id = "a"}))).ok());
  Event failed = event(EventKind::kFailed, 0);
  failed.failure.local_rank = -1;
  for (const Event& wrong :
       {join({.id = "a", .workers = -5}), join({.id = "a", .workers = 2'000'000'000}),
        join({.id = "a", .node_rank = -2}), join({.id = "a", .min_nodes = 3, .max_nodes = 2}),
        join({.id = "a", .grace_ms = std::numeric_limits<long>::max()}), event(EventKind::kSignal, 65),
        event(EventKind::kLeave, 1000), event(EventKind::kDone, -1), failed}) {
    EXPECT_EQ(decode_event(encode(wrong)).status().code(), ErrorCode::kCorrupt) << encode(wrong);
  }
}

TEST(NodeEvents, TextsMoveNoTerminalsCursor) {
  Event event{.kind = EventKind::kFailed, .node = "a"};
  event.failure.host = "\x1b[2J";
  event.failure.call_stack = "first\n\tsecond \x9b";
  event.failure.stderr_tail = {"\rforged"};
  const Failure read = decode_event(encode(event)).value().failure;
  EXPECT_EQ(read.host, "\\x1b[2J");
  EXPECT_EQ(read.call_stack.substr(0, 14), "first\n\tsecond ");
  EXPECT_EQ(read.stderr_tail.front(), "\\x0dforged");
}

TEST(NodeEvents, OutputMayBeAnyBytes) {
  Event event{.kind = EventKind::kFailed, .node = "a"};
  event.failure.stderr_tail = {"\xff\xfe bytes", "plain"};
  const auto read = decode_event(encode(event));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().failure.stderr_tail.back(), "plain");
}

}  // namespace
}  // namespace lockstep::launch
