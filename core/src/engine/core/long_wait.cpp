#include "long_wait.h"

#include <fmt/format.h>

#include <atomic>

#include "engine/core/group_registry.h"
#include "lockstep/base/log.h"

namespace lockstep::comm {
namespace {

// A rank that waits less is not worth a word to the others.
constexpr auto kShowAfter = std::chrono::milliseconds(50);

std::atomic<std::chrono::milliseconds> patience_of_process{Communicator::kDefaultPatience};

}  // namespace

void Communicator::set_patience(std::chrono::milliseconds patience) {
  patience_of_process.store(patience, std::memory_order_relaxed);
}

void show_long_wait(const Group& group, Watch& watch, bool in_itself, const std::function<std::string()>& what) {
  if (!watch.shows || watch.shown != nullptr || std::chrono::steady_clock::now() - watch.started < kShowAfter) return;
  watch.shown = GroupRegistry::of_process().show_wait(group, in_itself, what());
}

bool loses_patience(Watch& watch) {
  const auto patience = patience_of_process.load(std::memory_order_relaxed);
  const bool late = patience > std::chrono::milliseconds::zero() && !watch.warned &&
                    std::chrono::steady_clock::now() - watch.started >= patience;
  watch.warned = watch.warned || late;
  return late;
}

void warn_of_wait(const std::string& what, const std::string& why) {
  const std::chrono::duration<double> patience = patience_of_process.load(std::memory_order_relaxed);
  log::warning(fmt::format("{} has waited for more than {:g} s: {}", what, patience.count(), why));
}

}  // namespace lockstep::comm
