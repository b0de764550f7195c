// Processes that form a group anew, as threads of this one.
#include "store/membership/meeting_place.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>
#include <vector>

namespace lockstep::comm {
namespace {

using std::chrono::seconds;

constexpr auto kBuild = "this build";

std::shared_ptr<MeetingPlace> open_place(const std::string& build = kBuild, const std::string& key = {}) {
  auto place = MeetingPlace::open({.build = build, .job_key = key});
  EXPECT_TRUE(place.ok()) << place.status().message();
  return place.value();
}

// Members that have all ranks in turn.
struct Members {
  explicit Members(int count) {
    for (int rank = 0; rank < count; ++rank) {
      places.push_back(open_place());
      handles.push_back(places.back()->handle(rank));
    }
  }
  void in_all(const std::function<void(int member)>& run) const {
    std::vector<std::thread> threads;
    for (int member = 0; member < static_cast<int>(places.size()); ++member) {
      if (places[member] != nullptr) threads.emplace_back([&run, member] { run(member); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ReconfigureCall call(std::int64_t uuid, std::chrono::milliseconds timeout = seconds(20)) const {
    return {.group = "world", .uuid = uuid, .handles = handles, .deadline = Deadline::after(timeout)};
  }

  std::vector<std::shared_ptr<MeetingPlace>> places;
  std::vector<std::string> handles;
};

void expect_error(const Status& status, ErrorCode code, std::initializer_list<const char*> pieces) {
  EXPECT_EQ(to_string(status.code()), to_string(code)) << status.message();
  for (const char* piece : pieces) EXPECT_NE(status.message().find(piece), std::string::npos) << status.message();
}

TEST(MeetingPlace, PositionIsTheRankAndASetKeepsEarlierOrder) {
  const Members members(3);
  std::vector<std::string> backwards(members.handles.rbegin(), members.handles.rend());
  members.in_all([&](int member) {
    ReconfigureCall call = members.call(1);
    call.handles = backwards;
    const auto ordered = members.places[member]->meet(call);
    ASSERT_TRUE(ordered.ok()) << ordered.status().message();
    EXPECT_EQ(ordered.value().rendezvous.rank, 2 - member);
    EXPECT_EQ(ordered.value().rendezvous.world_size, 3);
    EXPECT_EQ(ordered.value().rendezvous.members.size(), 3U);
    ordered.value().formed();
    call.uuid = 2;
    call.ordered = false;
    const auto any = members.places[member]->meet(call);
    ASSERT_TRUE(any.ok()) << any.status().message();
    EXPECT_EQ(any.value().rendezvous.rank, member);
    EXPECT_EQ(any.value().handles, members.handles);
  });
}

TEST(MeetingPlace, WrongCallsSayWhatIsWrong) {
  const auto place = open_place();
  const auto check = [&](std::vector<std::string> handles) {
    return place->check({.group = "world", .uuid = 1, .handles = std::move(handles)});
  };
  const std::string own = place->handle(0);
  EXPECT_TRUE(check({own}).ok());
  expect_error(check({}), ErrorCode::kInvalidArgument, {"no handles"});
  for (const std::string garbage : {"", "x", "gloo:0:1:0:host:1", own.substr(0, own.size() - 6).c_str()}) {
    expect_error(check({own, garbage}), ErrorCode::kInvalidArgument, {"expected a handle of Lockstep"});
  }
  expect_error(check({own, place->handle(1)}), ErrorCode::kInvalidArgument, {"twice", "pid"});
  expect_error(check({open_place()->handle(1)}), ErrorCode::kInvalidArgument,
               {"own handle", "not among the 1 handles"});
  expect_error(check({own, open_place("another build")->handle(1)}), ErrorCode::kInvalidArgument,
               {"another build", "this build", "(rank 1 before)"});
  expect_error(check({own, open_place(kBuild, "the key of another job")->handle(1)}), ErrorCode::kInvalidArgument,
               {"another job", "LOCKSTEP_JOB_KEY"});
}

TEST(MeetingPlace, OtherHandlesAreAnErrorOnBothSides) {
  const Members members(3);
  members.in_all([&](int member) {
    if (member == 2) return;
    ReconfigureCall call = members.call(1);
    if (member == 1) call.handles.pop_back();
    expect_error(members.places[member]->meet(call).status(), ErrorCode::kMismatch, {"different handles", "3 members"});
    call = members.call(2);
    call.handles.pop_back();
    if (member == 1) std::swap(call.handles[0], call.handles[1]);
    expect_error(members.places[member]->meet(call).status(), ErrorCode::kMismatch, {"different handles"});
  });
}

TEST(MeetingPlace, AUsedNumberIsAnErrorOnEveryMember) {
  const Members members(2);
  const auto alone = members.places[1]->meet(
      {.group = "world", .uuid = 5, .handles = {members.handles[1]}, .deadline = Deadline::after(seconds(5))});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone.value().rendezvous.world_size, 1);
  members.in_all([&](int member) {
    expect_error(members.places[member]->meet(members.call(5)).status(), ErrorCode::kMismatch, {"5 was already used"});
  });
  members.in_all([&](int member) {
    ReconfigureCall call = members.call(5);
    call.group = "another group";
    EXPECT_TRUE(members.places[member]->meet(call).ok()) << "numbers of other groups do not count";
  });
}

TEST(MeetingPlace, WhoDoesNotComeIsNamed) {
  const Members members(3);
  members.in_all([&](int member) {
    if (member == 1) return;
    expect_error(members.places[member]->meet(members.call(1, std::chrono::milliseconds(300))).status(),
                 ErrorCode::kTimeout, {"missing: rank(s) 1", "rank 1 is pid"});
  });
  members.in_all([&](int member) { EXPECT_TRUE(members.places[member]->meet(members.call(2)).ok()); });
}

TEST(MeetingPlace, AMemberThatHasEndedIsNamedAtOnce) {
  for (const int gone : {0, 2}) {
    Members members(3);
    members.places[gone].reset();
    const std::string name = "(rank " + std::to_string(gone) + " before) has ended";
    members.in_all([&](int member) {
      expect_error(members.places[member]->meet(members.call(1)).status(), ErrorCode::kPeerFailed, {name.c_str()});
    });
  }
}

TEST(MeetingPlace, SurvivorsFindOneAnother) {
  for (const int gone : {0, 1, 2, 3}) {
    Members members(3);
    if (gone < 3) members.places[gone].reset();
    for (int round = 0; round < 3; ++round) {
      std::vector<std::optional<ReconfigureCall>> calls(3);
      members.in_all([&](int member) {
        const auto call =
            members.places[member]->find_survivors("world", members.handles, Deadline::after(seconds(20)));
        ASSERT_TRUE(call.ok()) << call.status().message();
        calls[member] = call.value();
        const auto met = members.places[member]->meet(call.value());
        ASSERT_TRUE(met.ok()) << met.status().message();
        met.value().formed();
      });
      for (int member = 0; member < 3; ++member) {
        if (!calls[member]) continue;
        EXPECT_EQ(calls[member]->handles.size(), gone < 3 ? 2U : 3U);
        EXPECT_EQ(calls[member]->uuid, calls[gone == 0 ? 1 : 0]->uuid);
      }
    }
  }
}

TEST(MeetingPlace, SurvivorsNameWhoLivesAndDoesNotCall) {
  const Members members(3);
  members.in_all([&](int member) {
    if (member == 2) return;
    const auto call = members.places[member]->find_survivors("world", members.handles,
                                                             Deadline::after(std::chrono::milliseconds(300)));
    expect_error(call.status(), ErrorCode::kTimeout, {"(rank 2 before) live(s)"});
  });
  const auto alone =
      members.places[1]->find_survivors("world", members.handles, Deadline::after(std::chrono::milliseconds(100)));
  expect_error(alone.status(), ErrorCode::kTimeout, {"(rank 0 before), which is to lead"});
}

// Between finding the others and meeting them.
TEST(MeetingPlace, WhoEndsMeanwhileIsNamedAndTheOthersTryAgain) {
  for (const int gone : {0, 1, 2}) {
    Members members(3);
    std::vector<ReconfigureCall> calls(3);
    const auto find = [&](int member) {
      const auto call = members.places[member]->find_survivors("world", members.handles, Deadline::after(seconds(20)));
      ASSERT_TRUE(call.ok()) << call.status().message();
      calls[member] = call.value();
    };
    members.in_all(find);
    members.places[gone].reset();
    const std::string name = "(rank " + std::to_string(gone) + " before)";
    members.in_all([&](int member) {
      expect_error(members.places[member]->meet(calls[member]).status(), ErrorCode::kPeerFailed, {name.c_str()});
      find(member);
      EXPECT_EQ(calls[member].handles.size(), 2U);
      EXPECT_TRUE(members.places[member]->meet(calls[member]).ok());
    });
  }
}

// The first one ends while the others wait for its word.
TEST(MeetingPlace, SurvivorsOutliveTheirLeader) {
  Members members(3);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    members.places[0].reset();
  });
  std::vector<std::thread> others;
  for (int member : {1, 2}) {
    others.emplace_back([&, member] {
      const auto call = members.places[member]->find_survivors("world", members.handles, Deadline::after(seconds(20)));
      ASSERT_TRUE(call.ok()) << call.status().message();
      EXPECT_EQ(call.value().handles, (std::vector<std::string>{members.handles[1], members.handles[2]}));
    });
  }
  killer.join();
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace lockstep::comm
