// Processes that form a group anew, as threads of this one.
#include "store/membership/meeting_place.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "store/membership/reconfigure_handle.h"
#include "store/tcp/socket.h"

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
  expect_error(check({own, place->handle(-1)}), ErrorCode::kInvalidArgument, {"expected a handle of Lockstep"});
  expect_error(check({open_place()->handle(1)}), ErrorCode::kInvalidArgument,
               {"own handle", "not among the 1 handles"});
  expect_error(check({own, open_place("another build")->handle(1)}), ErrorCode::kInvalidArgument,
               {"another build", "this build", "(rank 1 before)"});
  expect_error(check({own, open_place(kBuild, "the key of another job")->handle(1)}), ErrorCode::kInvalidArgument,
               {"another job", "LOCKSTEP_JOB_KEY"});
}

TEST(MeetingPlace, AHandleThatIsDamagedIsNone) {
  const std::string handle = open_place()->handle(3);
  EXPECT_EQ(parse_reconfigure_handle(handle)->rank, 3);
  std::vector<std::string> damaged{handle + "0", std::string(1 << 24, '|'), std::string(9, '|')};
  for (std::size_t i = 0; i < handle.size(); ++i) {
    damaged.push_back(handle.substr(0, i));
    damaged.push_back(handle);
    damaged.back()[i] = handle[i] == '1' ? '2' : '1';
  }
  for (const std::string& text : damaged)
    EXPECT_EQ(parse_reconfigure_handle(text).status().code(), ErrorCode::kInvalidArgument) << text.substr(0, 200);
}

// Who gives what, of members 0, 1 and 2; all learn that they disagree. Some wait at other stores than the others.
TEST(MeetingPlace, OtherHandlesAreAnErrorOnAllSides) {
  const Members members(3);
  using Given = std::vector<std::vector<int>>;
  std::int64_t uuid = 0;
  for (const Given& given : {Given{{0, 1}, {0, 1, 2}, {}}, Given{{0, 1}, {1, 0}, {}}, Given{{0, 1, 2}, {2, 1, 0}, {}},
                             Given{{0, 1}, {1, 2}, {1, 2, 0}}, Given{{0, 1}, {1, 2}, {2, 0}}}) {
    ++uuid;
    members.in_all([&](int member) {
      if (given[member].empty()) return;
      ReconfigureCall call = members.call(uuid);
      call.handles.clear();
      for (const int other : given[member]) call.handles.push_back(members.handles[other]);
      expect_error(members.places[member]->meet(call).status(), ErrorCode::kMismatch,
                   {"different handles", "members", "uuid", "pid"});
    });
  }
}

// Those who agree go on, and the one who does not learns of it.
TEST(MeetingPlace, OtherHandlesThanThoseOfAGroupThatIsMade) {
  const Members members(3);
  members.in_all([&](int member) {
    ReconfigureCall call = members.call(7);
    if (member != 0) call.handles.erase(call.handles.begin());
    const auto met = members.places[member]->meet(call);
    EXPECT_EQ(met.ok(), member != 0) << met.status().message();
    if (member == 0) expect_error(met.status(), ErrorCode::kMismatch, {"2 members and 3 members"});
  });
}

TEST(MeetingPlace, AUsedNumberIsAnErrorOnEveryMember) {
  const Members members(2);
  const auto alone = members.places[1]->meet(
      {.group = "world", .uuid = 5, .handles = {members.handles[1]}, .deadline = Deadline::after(seconds(5))});
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone.value().rendezvous.world_size, 1);
  members.in_all([&](int member) {
    expect_error(members.places[member]->meet(members.call(5)).status(), ErrorCode::kMismatch, {"uuid 5"});
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

TEST(MeetingPlace, WhoComesAfterARefusalReadsIt) {
  const Members members(3);
  members.in_all([&](int member) {
    if (member == 2) return;
    expect_error(members.places[member]->meet(members.call(1, std::chrono::milliseconds(300))).status(),
                 ErrorCode::kTimeout, {"missing: rank(s) 2"});
  });
  ReconfigureCall alone = members.call(2);
  alone.handles.resize(1);
  EXPECT_TRUE(members.places[0]->meet(alone).ok());
  expect_error(members.places[2]->meet(members.call(1)).status(), ErrorCode::kTimeout,
               {"only 2 of 3 ranks came", "missing: rank(s) 2"});
}

TEST(MeetingPlace, LoopbackIsNoPlaceForOtherMachines) {
  Members members(2);
  EXPECT_TRUE(check_reachable(members.handles).ok()) << "one host";
  ReconfigureHandle other = parse_reconfigure_handle(members.handles[1]).value();
  other.host += "-2";
  members.handles[1] = to_text(other);
  expect_error(check_reachable(members.handles), ErrorCode::kUnavailable, {"rank 0", "127.0.0.1", "MASTER_ADDR"});
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
  // Who gave up lives.
  members.in_all([&](int member) {
    const auto call = members.places[member]->find_survivors("world", members.handles, Deadline::after(seconds(20)));
    ASSERT_TRUE(call.ok()) << call.status().message();
    EXPECT_EQ(call.value().handles.size(), 3U);
  });
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

// Before it has come itself.
TEST(MeetingPlace, AMemberThatEndsWhileOthersWaitIsNamed) {
  for (const int gone : {0, 1, 2}) {
    Members members(3);
    std::thread killer([&, place = std::exchange(members.places[gone], nullptr)]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      place.reset();
    });
    const std::string name = "(rank " + std::to_string(gone) + " before)";
    members.in_all([&](int member) {
      expect_error(members.places[member]->meet(members.call(1)).status(), ErrorCode::kPeerFailed, {name.c_str()});
    });
    killer.join();
  }
}

// A member that is stopped: the kernel takes connections for it.
struct Stopped {
  explicit Stopped(Members& members, int rank) {
    ReconfigureHandle handle = parse_reconfigure_handle(members.handles[rank]).value();
    handle.id = "0123456789abcdef";
    handle.store = local_endpoint(port.get()).value();
    members.handles[rank] = to_text(handle);
    members.places[rank].reset();
  }
  Fd port = listen_at({"127.0.0.1", 0}).value();
};

TEST(MeetingPlace, AMemberThatIsStoppedIsNamed) {
  for (const int rank : {0, 1}) {
    Members members(3);
    const Stopped stopped(members, rank);
    const std::string name = "(rank " + std::to_string(rank) + " before)";
    const auto limit = std::chrono::milliseconds(300);
    members.in_all([&](int member) {
      expect_error(members.places[member]->meet(members.call(1, limit)).status(), ErrorCode::kTimeout,
                   {"live", name.c_str()});
      expect_error(members.places[member]->find_survivors("world", members.handles, Deadline::after(limit)).status(),
                   ErrorCode::kTimeout, {"live", name.c_str()});
    });
  }
}

TEST(MeetingPlace, AFullQueueIsNoLostMachine) {
  const Fd port = listen_at({"127.0.0.1", 0}).value();
  ASSERT_EQ(::listen(port.get(), 0), 0);
  const Endpoint place = local_endpoint(port.get()).value();
  const auto soon = [] { return Deadline::after(std::chrono::milliseconds(100)); };
  std::vector<Fd> waiting;
  for (auto fd = connect_to(place, soon()); fd.ok(); fd = connect_to(place, soon()))
    waiting.push_back(std::move(fd).value());
  EXPECT_EQ(ask_port(place, soon()), PortAnswer::kListens);
}

TEST(MeetingPlace, AStoppedMemberThatEndsIsNoticed) {
  for (const int rank : {0, 1}) {
    Members members(3);
    Stopped stopped(members, rank);
    const std::string name = "(rank " + std::to_string(rank) + " before)";
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      stopped.port.reset();
    });
    members.in_all([&](int member) {
      expect_error(members.places[member]->meet(members.call(1)).status(), ErrorCode::kPeerFailed, {name.c_str()});
    });
    killer.join();
    members.in_all([&](int member) {
      EXPECT_TRUE(members.places[member]->find_survivors("world", members.handles, Deadline::after(seconds(20))).ok());
    });
  }
}

TEST(MeetingPlace, NoKeysPileUp) {
  const Members members(2);
  std::vector<std::int64_t> keys;
  for (int round = 0; round < 6; ++round) {
    members.in_all([&](int member) {
      const auto call = members.places[member]->find_survivors("world", members.handles, Deadline::after(seconds(20)));
      ASSERT_TRUE(call.ok()) << call.status().message();
      const auto met = members.places[member]->meet(call.value());
      ASSERT_TRUE(met.ok()) << met.status().message();
      ASSERT_TRUE(met.value().rendezvous.store->set("key of the group", "1").ok());
      met.value().formed();
    });
    const Endpoint host = parse_reconfigure_handle(members.handles[0])->store;
    keys.push_back(TcpStore::connect({.server = host}, Deadline::after(seconds(20))).value()->num_keys().value());
  }
  EXPECT_EQ(keys[5], keys[2]);
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
