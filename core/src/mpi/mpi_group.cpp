#include "mpi/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "c10d/backend/future_completer.h"
#include "c10d/backend/group_errors.h"
#include "mpi/mpi_runtime.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr auto kLookEvery = milliseconds(500);
constexpr auto kLookFor = milliseconds(5);   // a store that has the key answers at once
constexpr const char* kRefused = "refused";  // a line for each refusal: number, rank, reason
constexpr const char* kBegun = "begun";      // there once a rank has seen that the group is lost

using ByRank = std::map<int, std::string>;
using ByNumber = std::map<std::uint64_t, ByRank>;

ByNumber parse(const std::string& lines) {
  ByNumber result;
  std::istringstream input(lines);
  for (std::string line; std::getline(input, line);) {
    std::istringstream words(line);
    std::uint64_t number = 0;
    int rank = 0;
    std::string reason;
    if (words >> number >> rank && std::getline(words >> std::ws, reason)) result[number][rank] = reason;
  }
  return result;
}

// How long a rank that leaves waits to learn whether the others have refused the same calls.
constexpr std::chrono::seconds kSettleTime{1};

}  // namespace

Refusals::Refusals(std::shared_ptr<comm::Store> store, int rank, std::vector<int> global_ranks)
    : store_(std::move(store)), rank_(rank), global_ranks_(std::move(global_ranks)) {}

void Refusals::refuse(std::uint64_t number, const std::string& reason) {
  if (global_ranks_.size() == 1) return;
  {
    MutexLock lock(mutex_);
    own_.insert(number);
    unsettled_.insert(number);
  }
  std::string line = fmt::format("{} {} {}", number, rank_, reason);
  std::replace(line.begin(), line.end(), '\n', ' ');
  static_cast<void>(store_->append(kRefused, line + '\n'));  // if the store is gone, so is the world
}

Status Refusals::look(std::uint64_t number, bool now) {
  std::set<std::uint64_t> own;
  {
    MutexLock lock(mutex_);
    const auto time = Deadline::Clock::now();
    if (!now && time < next_look_) return {};
    next_look_ = time + kLookEvery;
    own = own_;
  }
  const auto lines = store_->get(kRefused, Deadline::after(kLookFor));
  if (!lines.ok()) return {};
  std::string text;
  for (const auto& [refused, by_rank] : parse(lines.value())) {
    if (refused > number || own.contains(refused)) continue;
    for (const auto& [rank, reason] : by_rank) {
      text +=
          fmt::format("{}rank(s) {} could not take part: {}", text.empty() ? "" : "; ", global_ranks_[rank], reason);
    }
  }
  if (text.empty()) return {};
  static_cast<void>(store_->set(kBegun, "1"));
  return {ErrorCode::kMismatch, text};
}

bool Refusals::have_all_refused(const std::set<std::uint64_t>& numbers) const {
  const auto lines = store_->get(kRefused, Deadline::after(kLookFor));
  if (!lines.ok()) return false;
  const ByNumber all = parse(lines.value());
  return std::all_of(numbers.begin(), numbers.end(), [&](std::uint64_t number) {
    const auto found = all.find(number);
    return found != all.end() && found->second.size() == global_ranks_.size();
  });
}

Status Refusals::settle(std::uint64_t number, Deadline deadline) {
  std::set<std::uint64_t> numbers;
  {
    MutexLock lock(mutex_);
    numbers = unsettled_;
  }
  if (numbers.empty()) return {};
  for (; !have_all_refused(numbers); std::this_thread::sleep_for(milliseconds(1))) {
    LOCKSTEP_RETURN_IF_ERROR(look(number, /*now=*/true));
    const std::string begun = kBegun;
    const auto is_lost = store_->check({&begun, 1});
    if (!is_lost.ok() || is_lost.value()) {
      return {ErrorCode::kMismatch, "other ranks have made a call that this rank had refused because of its arguments"};
    }
    if (deadline.expired()) {
      return {
          ErrorCode::kTimeout,
          "this rank had refused a call because of its arguments, and it is not known what the other ranks have done"};
    }
  }
  MutexLock lock(mutex_);
  for (const std::uint64_t settled : numbers) unsettled_.erase(settled);
  return {};
}

MpiGroup::MpiGroup(MPI_Comm communicator, std::string who, int group_size, CallPlaces places,
                   std::unique_ptr<Refusals> refusals)
    : who_(std::move(who)),
      group_size_(group_size),
      places_(places),
      communicator_(communicator),
      refusals_(std::move(refusals)) {}

MpiGroup::~MpiGroup() {
  leave();
}

std::string MpiGroup::describe(const char* operation, std::uint64_t sequence, CallPlace place) const {
  return fmt::format("{} #{}{}", operation, sequence, places_.describe(place));
}

Status MpiGroup::error() const {
  MutexLock lock(mutex_);
  return error_;
}

Status MpiGroup::health() const {
  if (!origin_.is_this_process()) return fork_of(who_);
  MutexLock lock(mutex_);
  if (!error_.ok()) return {ErrorCode::kAborted, "the group is broken since " + error_.message()};
  if (left_) return left_group();
  return {};
}

void MpiGroup::break_with(const Status& error) {
  {
    MutexLock lock(mutex_);
    if (error_.ok()) error_ = error;
  }
  MpiRuntime::of_process().give_up_finalising();
}

std::shared_ptr<FutureCompleter> MpiGroup::completer() {
  MutexLock lock(mutex_);
  if (completer_ == nullptr && !left_)
    completer_ = std::shared_ptr<FutureCompleter>(new FutureCompleter, LeakInForks());
  return completer_;
}

void MpiGroup::leave() {
  if (!origin_.is_this_process()) return;
  works_.drain(Deadline::after(WorksUnderWay::kPartingTime), [this] { return !health().ok(); });
  std::shared_ptr<FutureCompleter> completer;
  {
    MutexLock lock(mutex_);
    if (left_) return;
    left_ = true;
    completer = std::move(completer_);
    completer_ = nullptr;
  }
  works_.collect();
  const WorksUnderWay::Works unfinished = works_.close();
  const Status settled = refusals_->settle(collectives_, Deadline::after(kSettleTime));
  if (!settled.ok()) break_with(settled);
  for (const GroupWorkPtr& work : unfinished) work->give_up();
  if (completer != nullptr) completer->stop();
  MpiRuntime& runtime = MpiRuntime::of_process();
  {
    MutexLock lock(runtime.mutex());
    // Not with operations under way: freeing the communicator would wait for other ranks.
    if (requests_ == 0 && error().ok() && runtime.is_usable()) MPI_Comm_free(&communicator_);
  }
  runtime.leave_group();
}

}  // namespace lockstep
