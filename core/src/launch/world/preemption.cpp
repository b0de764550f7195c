#include "lockstep/launch/preemption.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <string>
#include <utility>

#include "lockstep/launch/world.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::milliseconds kAskEvery{100};
constexpr std::chrono::seconds kStoreTimeout{10};
const std::string kAnnounced = "lockstep/preemption/announced";
const std::string kKnowing = "lockstep/preemption/knowing";  // how many ranks know
const std::string kStep = "lockstep/preemption/step";

volatile std::sig_atomic_t arrived = 0;

void note_signal(int) {
  arrived = 1;
}

Result<bool> has(comm::Store& store, const std::string& key) {
  return store.check({&key, 1});
}

}  // namespace

// The handlers of the signals, until it is destroyed.
class PreemptionWatch::Signals {
 public:
  static Result<std::unique_ptr<Signals>> take(const std::vector<int>& numbers) {
    std::unique_ptr<Signals> signals(new Signals);
    arrived = 0;
    for (const int number : numbers) {
      struct sigaction action {};
      struct sigaction before {};
      action.sa_handler = note_signal;
      action.sa_flags = SA_RESTART;
      if (sigaction(number, &action, &before) != 0) return Status::from_errno("PreemptionWatch: sigaction", errno);
      signals->before_.emplace_back(number, before);
    }
    return signals;
  }
  ~Signals() {
    for (const auto& [number, action] : before_) sigaction(number, &action, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  Signals() = default;
  std::vector<std::pair<int, struct sigaction>> before_;
};

std::vector<int> PreemptionWatch::default_signals() {
  return {SIGTERM, SIGUSR1};
}

PreemptionWatch::PreemptionWatch(std::shared_ptr<comm::Store> store, int world_size)
    : store_(std::move(store)), world_size_(world_size) {}

PreemptionWatch::~PreemptionWatch() = default;

Result<std::unique_ptr<PreemptionWatch>> PreemptionWatch::start(const std::vector<int>& signals,
                                                                const Environment& environment) {
  LOCKSTEP_ASSIGN_OR_RETURN(const World world, resolve_world({}, environment));
  if (world.world_size == 1) return start(nullptr, 1, signals);
  const auto address = environment.get("LOCKSTEP_STORE");
  if (!address) {
    return Status(ErrorCode::kInvalidArgument,
                  "PreemptionWatch: LOCKSTEP_STORE is not set (`lockstep run` sets it); give a store that all ranks "
                  "share");
  }
  comm::TcpStoreOptions options;
  LOCKSTEP_ASSIGN_OR_RETURN(options.server, comm::parse_endpoint(*address, "LOCKSTEP_STORE"));
  options.job_key = world.job_key;
  options.request_timeout = kStoreTimeout;
  LOCKSTEP_ASSIGN_OR_RETURN(auto store, comm::TcpStore::connect(options, Deadline::after(kStoreTimeout)));
  return start(std::move(store), world.world_size, signals);
}

Result<std::unique_ptr<PreemptionWatch>> PreemptionWatch::start(std::shared_ptr<comm::Store> store, int world_size,
                                                                const std::vector<int>& signals) {
  if (world_size > 1 && store == nullptr) {
    return Status(ErrorCode::kInvalidArgument, "PreemptionWatch: expected a store, found none");
  }
  std::unique_ptr<PreemptionWatch> watch(new PreemptionWatch(std::move(store), world_size));
  LOCKSTEP_ASSIGN_OR_RETURN(watch->signals_, Signals::take(signals));
  return watch;
}

// Whether some rank has announced the end.
Result<bool> PreemptionWatch::heard() {
  if (requested_ && !std::exchange(announced_, true)) {
    LOCKSTEP_RETURN_IF_ERROR(store_->set(kAnnounced, "1"));
    return true;
  }
  if (!ask_again_.expired()) return false;
  ask_again_ = Deadline::after(kAskEvery);
  return has(*store_, kAnnounced);
}

// The last rank that hears of the end chooses the step: two after its own. When it does, no other rank is further than
// one step ahead, and from when it has heard, every rank asks before each step. So all learn of the step in time.
Result<bool> PreemptionWatch::should_leave(long step) {
  requested_ = requested_ || arrived != 0;
  if (world_size_ == 1) return requested_;
  if (!acknowledged_) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool knows, heard());
    if (!knows) return false;
    acknowledged_ = true;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::int64_t knowing, store_->add(kKnowing, 1));
    if (knowing == world_size_) LOCKSTEP_RETURN_IF_ERROR(store_->set(kStep, std::to_string(step + 2)));
  }
  if (leave_at_ < 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool chosen, has(*store_, kStep));
    if (!chosen) return false;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, store_->get(kStep, Deadline::after(kStoreTimeout)));
    std::from_chars(text.data(), text.data() + text.size(), leave_at_);
  }
  return step >= leave_at_;
}

}  // namespace lockstep::launch
