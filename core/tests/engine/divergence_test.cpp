// What ranks are told when their programs go different ways: who is where, the same text on every rank. By worlds of 2
// to 5 ranks, on one machine and on two.
#include <gtest/gtest.h>

#include <mutex>

#include "lockstep/base/call_site.h"
#include "lockstep/base/log.h"
#include "support/thread_ranks.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

Deadline in_time() {
  return Deadline::after(30s);
}

// What this process logs while it lives. No test here runs beside another one.
class Logged {
 public:
  Logged() {
    log::set_output([this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~Logged() { log::set_output({}); }
  Logged(const Logged&) = delete;
  Logged& operator=(const Logged&) = delete;

  int count(const std::string& text) const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count_if(
        lines_.begin(), lines_.end(), [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  std::string all() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const std::string& line : lines_) text += line;
    return text;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class Patience {
 public:
  explicit Patience(std::chrono::milliseconds patience) { Communicator::set_patience(patience); }
  ~Patience() { Communicator::set_patience(Communicator::kDefaultPatience); }
};

// The groups of one rank: "training" and "validation", of all ranks. Ranks are on machines in turn.
struct Groups {
  Groups(const std::shared_ptr<Store>& store, int rank, int world, int machines)
      : training(join(store, rank, world, machines, "training")),
        validation(join(store, rank, world, machines, "validation")) {}

  static std::unique_ptr<Communicator> join(const std::shared_ptr<Store>& store, int rank, int world, int machines,
                                            const std::string& name) {
    CommunicatorOptions options;
    options.rank = rank;
    options.group_size = world;
    options.name = name;
    options.timeout = 30s;
    options.machine = "machine" + std::to_string(rank % machines);
    auto group = Communicator::create(store, options);
    EXPECT_TRUE(group.ok()) << group.status().message();
    return group.ok() ? std::move(group).value() : nullptr;
  }

  std::unique_ptr<Communicator> training;
  std::unique_ptr<Communicator> validation;
};

constexpr const char* kOneOfTwo[] = {"one machine", "two machines"};

// Runs fn(groups, rank) for each world, on one machine and on two, and expects the same status on all ranks: `told`.
void in_all_worlds(const std::function<Status(Groups&, int rank, int world)>& fn,
                   const std::function<void(const Status& told, int world)>& look,
                   const std::vector<int>& worlds = {2, 3, 4, 5}) {
  for (const int world : worlds) {
    for (const int machines : {1, 2}) {
      SCOPED_TRACE(std::to_string(world) + " ranks on " + kOneOfTwo[machines - 1]);
      const auto store = std::make_shared<HashStore>();
      std::vector<Status> told(world);
      test::run_each(world, [&](int rank) {
        Groups groups(store, rank, world, machines);
        if (groups.training != nullptr && groups.validation != nullptr) told[rank] = fn(groups, rank, world);
      });
      for (int rank = 0; rank < world; ++rank) EXPECT_EQ(told[rank].message(), told[0].message());
      look(told[0], world);
    }
  }
}

void expect_in(const std::string& text, std::initializer_list<std::string> pieces) {
  for (const std::string& piece : pieces)
    EXPECT_NE(text.find(piece), std::string::npos) << text << "\nlacks: " << piece;
}

// The error with which others break the group.
Status error_of(Communicator& group, Deadline deadline = in_time()) {
  for (; group.health().ok() && !deadline.expired();) {
    (void)group.check_present({});  // takes in what other machines tell
    std::this_thread::sleep_for(1ms);
  }
  return group.health();
}

CallSite line(std::uint32_t number) {
  return {"src/program.cpp", number};
}

// The last rank asks for something else than the others.
struct Difference {
  const char* name;
  std::function<Status(Communicator&, bool differs)> call;
  std::string usual, different;  // what the others and the last rank have called
};

std::vector<Difference> differences() {
  const auto reduce = [](Communicator& group, std::size_t count, DataType type, ReduceOp op) {
    std::vector<double> data(20'000);
    return group.run(AllReduce{data.data(), data.data(), count, type, op}, in_time());
  };
  using T = DataType;
  return {
      {"operation",
       [=](Communicator& group, bool differs) {
         return differs ? group.run(Barrier{}, in_time()) : reduce(group, 4, T::kFloat32, ReduceOp::kSum);
       },
       "called all_reduce of 4 float32 (sum)", "called barrier"},
      {"small size",
       [=](Communicator& group, bool differs) { return reduce(group, differs ? 5 : 4, T::kFloat32, ReduceOp::kSum); },
       "called all_reduce of 4 float32 (sum)", "called all_reduce of 5 float32 (sum)"},
      {"large size",
       [=](Communicator& group, bool differs) {
         return reduce(group, differs ? 15'000 : 14'000, T::kFloat32, ReduceOp::kSum);
       },
       "called all_reduce of 14000 float32 (sum)", "called all_reduce of 15000 float32 (sum)"},
      {"dtype",
       [=](Communicator& group, bool differs) {
         return reduce(group, 8, differs ? T::kInt32 : T::kFloat32, ReduceOp::kSum);
       },
       "called all_reduce of 8 float32 (sum)", "called all_reduce of 8 int32 (sum)"},
      {"reduction",
       [=](Communicator& group, bool differs) {
         return reduce(group, 8, T::kFloat32, differs ? ReduceOp::kMax : ReduceOp::kSum);
       },
       "called all_reduce of 8 float32 (sum)", "called all_reduce of 8 float32 (max)"},
      {"root",
       [=](Communicator& group, bool differs) {
         std::array<char, 16> data{};
         return group.run(Broadcast{data.data(), data.size(), differs ? 1 : 0}, in_time());
       },
       "called broadcast of 16 bytes of byte from rank 0", "called broadcast of 16 bytes of byte from rank 1"},
      {"size of a piece",
       [=](Communicator& group, bool differs) {
         std::vector<char> data(64 * 6);
         AllGather args;
         args.input = {data.data(), differs ? std::size_t{48} : std::size_t{64}};
         for (int rank = 0; rank < group.group_size(); ++rank) args.outputs.push_back({data.data() + 64 * rank, 64});
         return group.run(args, in_time());
       },
       "expects 64 bytes from rank", "which sends 48"},
  };
}

TEST(DivergenceMulti, EveryRankIsToldWhoCalledWhatFromWhere) {
  in_all_worlds(
      [](Groups& groups, int rank, int world) {
        const bool differs = rank == world - 1;
        std::string told;
        for (const Difference& difference : differences()) {
          const CallScope scope(line(differs ? 12 : 11));
          const Status status = difference.call(*groups.training, differs);
          EXPECT_EQ(status.code(), ErrorCode::kMismatch) << difference.name << ": " << status.message();
          expect_in(status.message(),
                    {difference.usual, " at src/program.cpp:11", difference.different + " at src/program.cpp:12"});
          EXPECT_TRUE(groups.training->run(Barrier{}, in_time()).ok()) << "the group goes on";
          told += status.message();
        }
        return Status(ErrorCode::kMismatch, told);
      },
      [](const Status&, int) {});
}

// The last rank validates, the others train.
TEST(DivergenceMulti, ARankInAnotherGroupIsFoundThere) {
  const Patience patience(300ms);
  const Logged logged;
  int ranks_that_warn = 0;
  in_all_worlds(
      [](Groups& groups, int rank, int world) {
        EXPECT_TRUE(groups.training->run(Barrier{}, in_time()).ok());
        float value = 1;
        if (rank == world - 1) {
          const CallScope scope(line(22));
          EXPECT_EQ(groups.validation->run(Barrier{}, in_time()).code(), ErrorCode::kAborted);
          return error_of(*groups.training);
        }
        const CallScope scope(line(21));
        const Status status = groups.training->run(AllReduce{&value, &value, 1}, Deadline::after(1s));
        groups.validation->abort("over");
        return status;
      },
      [&](const Status& told, int world) {
        EXPECT_EQ(told.code(), ErrorCode::kTimeout) << told.message();
        const std::string last = std::to_string(world - 1);
        expect_in(told.message(), {"all_reduce #2 of group 'training' timed out on rank", "last call barrier #1",
                                   "now in barrier #1 of group 'validation' at src/program.cpp:22", ") never called it",
                                   "; called by rank(s) 0", " at src/program.cpp:21"});
        ranks_that_warn += world - 1;
      });
  EXPECT_EQ(logged.count("all_reduce #2 of group 'training' has waited for more than 0.3 s: rank(s) "), ranks_that_warn)
      << logged.all();
  EXPECT_EQ(logged.count("now in barrier #1 of group 'validation' at src/program.cpp:22"), ranks_that_warn)
      << logged.all();
}

// Rank 0 trains, the last rank validates, and the others do what rank 0 does. All give up at the same moment, so each
// group breaks by itself, or because the other one broke.
TEST(DivergenceMulti, RanksThatGiveUpTogetherInTwoGroupsAreToldTheSameInEach) {
  for (const bool in_validation : {false, true}) {
    in_all_worlds(
        [&](Groups& groups, int rank, int world) {
          EXPECT_TRUE(groups.training->run(Barrier{}, in_time()).ok());
          const bool validates = rank == world - 1;
          const CallScope scope(line(validates ? 62 : 61));
          Communicator& here = validates ? *groups.validation : *groups.training;
          Communicator& asked = in_validation ? *groups.validation : *groups.training;
          float value = 1;
          const Status own = here.run(AllReduce{&value, &value, 1}, Deadline::after(700ms));
          return &asked == &here ? own : error_of(asked);
        },
        [](const Status& told, int) {
          EXPECT_EQ(told.code(), ErrorCode::kTimeout) << told.message();
          expect_in(told.message(), {"of group '", " timed out on rank "});
        },
        {2, 3, 5});
  }
}

// A warning that waits for its answers does not put off the end.
TEST(DivergenceMulti, APatienceAsLongAsTheTimeoutEndsInTime) {
  const Patience patience(300ms);
  in_all_worlds(
      [](Groups& groups, int rank, int world) {
        const auto begun = std::chrono::steady_clock::now();
        if (rank == world - 1) {
          const Status told = error_of(*groups.training, Deadline::after(10s));
          groups.training->abort("no rank gives up");
          return told;
        }
        const Status status = groups.training->run(Barrier{}, Deadline::after(rank == 0 ? 300ms : 400ms));
        EXPECT_LT(std::chrono::steady_clock::now() - begun, 5s);
        return status;
      },
      [](const Status& told, int) { EXPECT_EQ(told.code(), ErrorCode::kTimeout) << told.message(); }, {2, 3});
}

TEST(DivergenceMulti, AWaitThatEndsBeforeItsWarningDoesNotWarnInTheNextOne) {
  const Patience patience(1s);
  const Logged logged;
  in_all_worlds(
      [](Groups& groups, int rank, int world) {
        for (int call = 0; call < 2; ++call) {
          if (rank == world - 1) std::this_thread::sleep_for(call == 0 ? 1050ms : 300ms);
          EXPECT_TRUE(groups.training->run(Barrier{}, in_time()).ok());
        }
        return Status();
      },
      [](const Status&, int) {}, {2});
  EXPECT_EQ(logged.count("barrier #2"), 0) << logged.all();
}

// A program that computes between two questions has not waited meanwhile.
TEST(DivergenceMulti, TimeBetweenQuestionsIsNoWaiting) {
  const Patience patience(1s);
  const Logged logged;
  in_all_worlds(
      [](Groups& groups, int rank, int world) {
        if (rank == world - 1) {
          std::this_thread::sleep_for(1500ms);
          EXPECT_TRUE(groups.training->run(Barrier{}, in_time()).ok());
          return Status();
        }
        auto operation = groups.training->start(Barrier{});
        EXPECT_TRUE(operation.ok());
        (void)operation->is_completed();
        std::this_thread::sleep_for(1200ms);
        while (!operation->is_completed()) std::this_thread::sleep_for(1ms);
        return operation->wait(in_time());
      },
      [](const Status& told, int) { EXPECT_TRUE(told.ok()) << told.message(); }, {2});
  EXPECT_EQ(logged.all(), "");
}

// As if rank 1 were of a build that sends other records.
class OtherBuild final : public Store {
 public:
  explicit OtherBuild(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  std::string local_address() const override { return store_->local_address(); }

 private:
  Result<StoreAnswer> answer(StoreCall call) override {
    const bool publishes = call.op == StoreCall::Op::kSet && call.keys[0].ends_with("/address/1");
    if (const std::size_t at = publishes ? call.values[0].find("records ") : std::string::npos; at != std::string::npos)
      call.values[0].replace(at, 1, "R");
    return store_->ask(std::move(call));
  }

  const std::shared_ptr<Store> store_;
};

TEST(DivergenceMulti, MachinesWithDifferentBuildsAreTold) {
  const auto store = std::make_shared<OtherBuild>(std::make_shared<HashStore>());
  test::run_each(2, [&](int rank) {
    CommunicatorOptions options;
    options.rank = rank;
    options.group_size = 2;
    options.timeout = 10s;
    options.machine = "machine" + std::to_string(rank);
    const auto group = Communicator::create(store, options);
    ASSERT_FALSE(group.ok());
    EXPECT_EQ(group.status().code(), ErrorCode::kMismatch) << group.status().message();
    expect_in(group.status().message(), {"run different builds of this library"});
  });
}

// The last rank computes.
TEST(DivergenceMulti, ALateRankIsNamedWithItsLastCall) {
  in_all_worlds(
      [](Groups& groups, int rank, int world) {
        const CallScope scope(line(rank == world - 1 ? 32 : 31));
        EXPECT_TRUE(groups.training->run(Barrier{}, in_time()).ok());
        if (rank == world - 1) {
          return error_of(*groups.training);
        }
        EXPECT_TRUE(groups.training->start(Barrier{}).ok());
        EXPECT_TRUE(groups.training->start(Barrier{}).ok());
        return groups.training->run(Barrier{}, Deadline::after(1500ms));
      },
      [](const Status& told, int) {
        EXPECT_EQ(told.code(), ErrorCode::kTimeout) << told.message();
        expect_in(told.message(),
                  {"last call barrier #1 at src/program.cpp:32", "in no call for 1 s", " at src/program.cpp:31"});
      });
}

TEST(DivergenceMulti, ARankThatIsFarBehindIsToldSo) {
  test::run_threads(2, [](Communicator& group) {
    EXPECT_TRUE(group.run(Barrier{}, in_time()).ok());
    if (group.rank() == 1) return static_cast<void>(error_of(group));
    EXPECT_TRUE(group.start(Barrier{}).ok());
    EXPECT_TRUE(group.start(Barrier{}).ok());
    expect_in(group.run(Barrier{}, Deadline::after(100ms)).message(),
              {"rank(s) 1 (last call barrier #1, 3 calls behind)"});
  });
}

TEST(DivergenceMulti, ARankThatWaitsForAMessageIsFoundThere) {
  in_all_worlds(
      [](Groups& groups, int rank, int world) {
        float value = 1;
        if (rank == world - 1) {
          const CallScope scope(line(42));
          return groups.training->run(Receive{{&value, sizeof value}, 0, 5}, in_time());
        }
        const CallScope scope(line(41));
        return groups.training->run(AllReduce{&value, &value, 1}, Deadline::after(1s));
      },
      [](const Status& told, int) {
        EXPECT_EQ(told.code(), ErrorCode::kTimeout) << told.message();
        expect_in(told.message(), {"now in recv from rank 0 with tag 5 in group 'training' at src/program.cpp:42"});
      });
}

TEST(DivergenceMulti, AMessageThatDoesNotComeTellsWhereItsSenderIs) {
  in_all_worlds(
      [](Groups& groups, int rank, int world) {
        float value = 1;
        const CallScope scope(line(rank == world - 1 ? 52 : 51));
        if (rank == world - 1)
          return groups.training->run(Receive{{&value, sizeof value}, 0, 5}, Deadline::after(500ms));
        return groups.training->run(AllReduce{&value, &value, 1}, in_time());
      },
      [](const Status& told, int) {
        EXPECT_EQ(told.code(), ErrorCode::kTimeout) << told.message();
        expect_in(told.message(), {" at src/program.cpp:52 timed out: no matching send came: rank(s) 0 (",
                                   "all_reduce #1 at src/program.cpp:51"});
      });
}

TEST(DivergenceMulti, APatientProgramIsNotWarned) {
  const Patience patience(0ms);
  const Logged logged;
  test::run_threads(2, [](Communicator& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(200ms);
    EXPECT_TRUE(group.run(Barrier{}, in_time()).ok());
  });
  EXPECT_EQ(logged.all(), "");
}

}  // namespace
}  // namespace lockstep::comm
