#include "sweep/script.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <regex>
#include <vector>

#include "base/fault_point.h"
#include "engine/calls.h"
#include "lockstep/store/tcp_store.h"
#include "support/process.h"

namespace lockstep::test {
namespace {

using namespace comm;
using namespace std::chrono_literals;

// A death is seen long before this; a frozen rank is found at the timeout.
constexpr auto kKilledLimit = 30s;
constexpr auto kFrozenLimit = 5s;  // much longer than ranks that run take, on a busy machine too
constexpr auto kJoinLimit = 6s;
constexpr auto kRole = "LOCKSTEP_SWEEP_RANK";  // set in ranks alone
constexpr auto kWord = "enough";
constexpr std::byte kOtherUse{0x3c};

// Where this process stops, and how often it has come to each point.
class FaultPlan {
 public:
  static FaultPlan& of_process() {
    static auto& plan = *new FaultPlan;
    return plan;
  }
  void set(const ScriptSettings& settings) {
    const std::lock_guard lock(mutex_);
    settings_ = settings;
    passed_.clear();
  }
  void pass(const char* where) {
    const std::lock_guard lock(mutex_);
    if (++passed_[where] == settings_.passing && settings_.point == where) kill(getpid(), settings_.signal);
  }
  void print() {
    const std::lock_guard lock(mutex_);
    for (const auto& [where, count] : passed_) fmt::print("point {} {}\n", count, where);
    std::fflush(stdout);
  }

 private:
  std::mutex mutex_;
  ScriptSettings settings_;
  std::map<std::string, int> passed_;
};

class Script {
 public:
  explicit Script(const ScriptSettings& settings)
      : settings_(settings),
        limit_(settings.signal == SIGSTOP ? std::chrono::nanoseconds(kFrozenLimit) : kKilledLimit),
        arena_(SharedArena::create().value()) {}

  void run() {
    const bool over = join() && small_calls() && large_calls() && mixed_calls() && messages() && end_pair();
    if (!over && settings_.rank != settings_.victim) use_memory_otherwise();
    leave();
  }

 private:
  bool is_in_pair() const { return settings_.rank == 0 || settings_.rank == settings_.world - 1; }
  Deadline deadline() const { return Deadline::after(limit_); }

  void expect_named(const Status& status, const std::string& step) const {
    const std::regex named(fmt::format(R"(rank(\(s\))? ([0-9]+( \([^)]*\))?, )*{}\b)", settings_.victim));
    fmt::print("{}: {}: {}\n", step, to_string(status.code()), status.message());
    const std::string own = fmt::format("rank {}", settings_.rank);
    std::string others = status.message();
    while (others.starts_with(own)) others = others.substr(others.find(": ") + 2);
    EXPECT_TRUE(std::regex_search(others, named)) << step << ": " << status.message();
  }

  // Whether the script goes on.
  bool expect_fine(const Status& status, const std::string& step) {
    if (status.ok() || settings_.rank == settings_.victim) return status.ok();
    expect_named(status, step);
    const bool expected = status.code() == ErrorCode::kTimeout ||
                          (settings_.signal == SIGKILL && status.code() == ErrorCode::kPeerFailed) ||
                          (settings_.signal == SIGSTOP && status.code() == ErrorCode::kPeerFailed &&
                           status.message().find("timed out") != std::string::npos);
    EXPECT_TRUE(expected) << step << ": " << to_string(status.code()) << ": " << status.message();
    // No error says that a rank has not called the operation which it is in.
    std::smatch late;
    if (std::regex_search(status.message(), late, std::regex(R"(([a-z_]+ #[0-9]+) of group '.*' timed out)"))) {
      EXPECT_EQ(status.message().find(fmt::format("last call {}", late[1].str())), std::string::npos)
          << status.message();
    }
    if (settings_.signal == SIGSTOP && !settings_.machines) {
      EXPECT_NE(status.message().find("stopped by a signal"), std::string::npos) << step << ": " << status.message();
    }
    return false;
  }

  bool join() {
    TcpStoreOptions options;
    options.server = {"127.0.0.1", static_cast<std::uint16_t>(settings_.port)};
    store_ = TcpStore::connect(options, Deadline::after(30s)).value();
    CommunicatorOptions own;
    own.rank = settings_.rank;
    own.group_size = settings_.world;
    own.timeout = kJoinLimit;
    own.arena = arena_;
    if (settings_.machines) own.machine = fmt::format("machine{}", settings_.rank / 2);
    if (!join(own, world_)) return false;
    if (!is_in_pair()) return true;
    own.name = "pair";
    own.group_size = 2;
    own.rank = settings_.rank == 0 ? 1 : 0;
    own.world_ranks = {settings_.world - 1, 0};
    return join(own, pair_);
  }

  bool join(const CommunicatorOptions& own, std::unique_ptr<Communicator>& group) {
    auto made = Communicator::create(store_, own);
    if (!made.ok()) {
      if (settings_.rank != settings_.victim) expect_named(made.status(), "join");
      return false;
    }
    group = std::move(made).value();
    return true;
  }

  // Keeps the memory, to use it for something else later.
  Call& make_call(Communicator& group, Kind kind, std::size_t count, const Style& style) {
    Spec spec;
    spec.kind = kind;
    spec.count = count;
    spec.root = group.group_size() - 1;
    spec.seed = &group == pair_.get() ? 0 : ++seed_;  // the same on every rank of the group
    spec.type = DataType::kInt32;
    calls_.push_back(std::make_unique<Call>(group, spec, style));
    return *calls_.back();
  }

  bool call(Communicator& group, Kind kind, std::size_t count, const Style& style) {
    Call& made = make_call(group, kind, count, style);
    Status status;
    if (style.blocking) {
      status = made.run(deadline());
    } else {
      auto started = made.start();
      status = started.ok() ? started->wait(deadline()) : started.status();
    }
    if (!expect_fine(status, fmt::format("{} of {}", to_string(kind), count))) return false;
    made.check();
    return true;
  }

  bool small_calls() {
    const Style own{Place::kPrivate, Place::kPrivate, false, true};
    return call(*world_, Kind::kBarrier, 0, own) && call(*world_, Kind::kAllReduce, 2, own) &&
           call(*world_, Kind::kAllGather, 600, own) && call(*world_, Kind::kReduceScatter, 50, own);
  }

  bool large_calls() {
    const Style shared{Place::kArena, Place::kArena, true, true};
    const Style started{Place::kPrivate, Place::kPrivate, true, false};
    const Style streamed{Place::kPrivate, Place::kPrivate, false, true};
    return call(*world_, Kind::kAllReduce, 80'000, shared) && call(*world_, Kind::kAllReduce, 20'000, started) &&
           call(*world_, Kind::kAllReduce, 5'000, streamed) && call(*world_, Kind::kAllReduce, 200'000, streamed) &&
           call(*world_, Kind::kAllToAll, 20'000, streamed) &&
           (!is_in_pair() || call(*pair_, Kind::kAllReduce, 40'000, shared));
  }

  // Ranks differ in where their memory is, and in whether they wait.
  bool mixed_calls() {
    const bool even = settings_.rank % 2 == 0;
    const Style partly_private{Place::kArena, even ? Place::kPrivate : Place::kArena, false, true};
    const Style shared{Place::kArena, Place::kArena, false, !even};
    const Style late{Place::kPrivate, Place::kPrivate, false, even};
    return call(*world_, Kind::kAllGather, 30'000, partly_private) &&
           call(*world_, Kind::kReduceScatter, 30'000, shared) && call(*world_, Kind::kBroadcast, 30'000, late);
  }

  bool messages() {
    const int to = (settings_.rank + 1) % settings_.world;
    const int from = (settings_.rank + settings_.world - 1) % settings_.world;
    for (const auto& [place, bytes] :
         {std::pair{Place::kPrivate, 100}, {Place::kArena, 30'000}, {Place::kPrivate, 300'000}}) {
      const auto size = static_cast<std::size_t>(bytes);
      const Buffer& sent = buffers_.emplace_back(*arena_, place, size);
      std::memset(sent.data(), settings_.rank + 1, size);
      const Buffer& got = buffers_.emplace_back(*arena_, place, size);
      auto sending = world_->start(Send{{sent.data(), size}, to, 1});
      auto receiving = world_->start(Receive{{got.data(), size}, from, 1});
      const Status sent_all = sending.ok() ? sending->wait(deadline()) : sending.status();
      const Status got_all = receiving.ok() ? receiving->wait(deadline()) : receiving.status();
      if (!expect_fine(sent_all, "send") || !expect_fine(got_all, "receive")) return false;
      EXPECT_TRUE(std::all_of(got.data(), got.data() + size, [&](std::byte b) { return b == std::byte(from + 1); }));
    }
    return true;
  }

  // Its first rank breaks it.
  bool end_pair() {
    if (!is_in_pair()) return true;
    if (pair_->rank() == 0) {
      pair_->abort(kWord);
      return true;
    }
    const Status status = pair_->run(Barrier{}, deadline());
    return (status.code() == ErrorCode::kAborted && status.message() == kWord) || expect_fine(status, "pair");
  }

  // Ranks with even numbers leave first. The memory is written to where it is, then half of it is given back and what
  // takes its place is written to.
  void use_memory_otherwise() {
    if (settings_.rank % 2 == 0) leave();
    std::vector<std::span<std::byte>> memory;
    for (const auto& made : calls_) {
      for (const std::span<std::byte> part : made->memory()) memory.push_back(part);
    }
    for (const Buffer& buffer : buffers_) memory.emplace_back(buffer.data(), buffer.bytes());
    for (const std::span<std::byte> part : memory) std::memset(part.data(), static_cast<int>(kOtherUse), part.size());
    std::vector<std::size_t> freed;
    for (std::size_t i = 0; i < calls_.size(); i += 2) {
      for (const std::span<std::byte> part : calls_[i]->memory()) {
        freed.push_back(part.size());
        std::erase_if(memory, [&](const auto& other) { return other.data() == part.data(); });
      }
      calls_[i].reset();
    }
    std::vector<std::unique_ptr<Buffer>> others;
    for (const std::size_t bytes : freed) {
      others.push_back(std::make_unique<Buffer>(*arena_, Place::kArena, bytes));
      std::memset(others.back()->data(), static_cast<int>(kOtherUse), bytes);
    }
    fmt::print("reused\n");
    std::fflush(stdout);
    EXPECT_TRUE(wait_for([&] { return std::filesystem::exists(settings_.go_on); }, 100s));
    for (const auto& other : others) memory.emplace_back(other->data(), other->bytes());
    for (const std::span<std::byte> part : memory) {
      EXPECT_TRUE(std::all_of(part.begin(), part.end(), [](std::byte b) { return b == kOtherUse; }))
          << "memory of " << part.size() << " bytes was written to after its operation had failed";
    }
  }

  void leave() {
    pair_.reset();
    world_.reset();
  }

  const ScriptSettings settings_;
  const std::chrono::nanoseconds limit_;
  const std::shared_ptr<SharedArena> arena_;
  std::shared_ptr<TcpStore> store_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::deque<Buffer> buffers_;
  std::uint64_t seed_ = 0;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Communicator> pair_;
};

std::string text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool ScriptSettings::is_rank() {
  return std::getenv(kRole) != nullptr;
}

ScriptSettings ScriptSettings::of_process() {
  const auto number = [](const char* name) { return std::atoi(text_of(name).c_str()); };
  ScriptSettings settings;
  settings.rank = number("SWEEP_RANK");
  settings.world = number("SWEEP_WORLD");
  settings.victim = number("SWEEP_VICTIM");
  settings.port = number("SWEEP_PORT");
  settings.machines = number("SWEEP_MACHINES") != 0;
  settings.point = text_of("SWEEP_POINT");
  settings.passing = number("SWEEP_PASSING");
  settings.signal = number("SWEEP_SIGNAL");
  settings.go_on = text_of("SWEEP_GO_ON");
  return settings;
}

std::map<std::string, std::string> ScriptSettings::environment() const {
  return {{kRole, "1"},
          {"SWEEP_RANK", std::to_string(rank)},
          {"SWEEP_WORLD", std::to_string(world)},
          {"SWEEP_VICTIM", std::to_string(victim)},
          {"SWEEP_PORT", std::to_string(port)},
          {"SWEEP_MACHINES", std::to_string(machines ? 1 : 0)},
          {"SWEEP_POINT", point},
          {"SWEEP_PASSING", std::to_string(passing)},
          {"SWEEP_SIGNAL", std::to_string(signal)},
          {"SWEEP_GO_ON", go_on}};
}

void stop_at_point(const ScriptSettings& settings) {
  FaultPlan::of_process().set(settings);
}

void run_script(const ScriptSettings& settings) {
  if (settings.rank == settings.victim) stop_at_point(settings);
  Script(settings).run();
  FaultPlan::of_process().print();
}

}  // namespace lockstep::test

void lockstep::fault_point(const char* where) {
  test::FaultPlan::of_process().pass(where);
}
