#include "long_wait.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/number_text.h"
#include "engine/core/group_registry.h"
#include "engine/core/patience.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/log.h"

namespace lockstep::comm {
namespace {

// A rank that waits less is not worth a word to the others.
constexpr auto kShowAfter = std::chrono::milliseconds(50);
// In a short wait sooner.
constexpr auto kStandsStillAfter = std::chrono::seconds(1);
// A program that tests less often than this does something else meanwhile.
constexpr auto kLongestPause = std::chrono::seconds(1);

// A program that does not call init_process_group, such as one of torch.distributed, cannot get the error.
std::chrono::milliseconds first_patience() {
  const auto patience = patience_in_environment();
  if (patience.ok()) return patience.value();
  log::warning(patience.status().message());
  return Communicator::kDefaultPatience;
}

std::atomic<std::chrono::milliseconds>& patience_of_process() {
  static std::atomic<std::chrono::milliseconds> patience{first_patience()};
  return patience;
}

}  // namespace

Result<std::chrono::milliseconds> patience_in_environment() {
  constexpr const char* kVariable = "LOCKSTEP_PATIENCE";
  constexpr double kMostSeconds = 1e9;
  const auto text = Environment::of_process().get(kVariable);
  if (!text) return Communicator::kDefaultPatience;
  const auto seconds = number_from_text<double>(*text);
  if (seconds && *seconds >= 0 && *seconds <= kMostSeconds)
    return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("expected a patience of zero (no warnings) or more, found {}='{}'", kVariable, *text));
}

void Communicator::set_patience(std::chrono::milliseconds patience) {
  patience_of_process().store(patience, std::memory_order_relaxed);
}

void show_long_wait(const Group& group, Watch& watch, bool in_itself, const std::function<std::string()>& what) {
  if (!watch.shows || watch.shown != nullptr || std::chrono::steady_clock::now() - watch.started < kShowAfter) return;
  watch.shown = GroupRegistry::of_process().show_wait(group, in_itself, what());
}

bool loses_patience(Watch& watch) {
  const auto patience = patience_of_process().load(std::memory_order_relaxed);
  const bool late = patience > std::chrono::milliseconds::zero() && !watch.warned &&
                    std::chrono::steady_clock::now() - watch.started >= patience;
  watch.warned = watch.warned || late;
  return late;
}

void leave_out_time_between_tests(Watch& watch, Watch::Time now) {
  const auto between = now - watch.checked;
  if (between > kLongestPause) watch.started = std::min(now, watch.started + between);
}

bool still_moves(const Watch& watch, Watch::Time moved) {
  const auto now = std::chrono::steady_clock::now();
  return now - moved < std::min<Watch::Time::duration>(kStandsStillAfter, (now - watch.started) / 2);
}

std::string warning_of_wait(const std::string& what, const std::string& why) {
  const std::chrono::duration<double> patience = patience_of_process().load(std::memory_order_relaxed);
  return fmt::format("{} has waited for more than {:g} s: {}", what, patience.count(), why);
}

}  // namespace lockstep::comm
