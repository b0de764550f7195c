#include "launch/nodes/decision.h"

#include <fmt/format.h>

namespace lockstep::launch {
namespace {

std::string counted(int number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

const char* describe(Cause cause) {
  switch (cause) {
    case Cause::kStart: return "the job begins";
    case Cause::kWorkerFailed: return "a worker failed";
    case Cause::kNodeLost: return "a node was lost";
    case Cause::kNodeLeft: return "a node left";
    case Cause::kNodeJoined: return "a node joined";
  }
  return "";
}

Decision after_failure(const Situation& now) {
  const char* what = describe(now.cause);
  if (now.max_restarts == 0) return {Action::kGiveUp, false, fmt::format("{}, and --max-restarts is 0", what)};
  if (now.restarts >= now.max_restarts) {
    return {Action::kGiveUp, false, fmt::format("{} after {} of {} restarts", what, now.restarts, now.max_restarts)};
  }
  return {Action::kRestart, true, fmt::format("{} (restart {} of {})", what, now.restarts + 1, now.max_restarts)};
}

Decision while_running(const Situation& now) {
  switch (now.cause) {
    case Cause::kStart: return {Action::kWait, false, "the workers run"};
    case Cause::kWorkerFailed:
    case Cause::kNodeLost: return after_failure(now);
    case Cause::kNodeLeft:
      if (now.nodes >= now.min_nodes) {
        return {Action::kRestart, false, fmt::format("a node left, the job has {}", counted(now.nodes, "node"))};
      }
      return {Action::kGiveUp, false,
              fmt::format("a node left, the job has {}, and needs {}", counted(now.nodes, "node"), now.min_nodes)};
    case Cause::kNodeJoined:
      if (now.seated < now.max_nodes) return {Action::kRestart, false, "a node joined"};
      return {Action::kWait, false, fmt::format("the job has all of its {}", counted(now.seated, "node"))};
  }
  return {};
}

Decision while_none_runs(const Situation& now) {
  if (now.nodes >= now.max_nodes) return {Action::kStart, false, "all nodes are there"};
  if (now.nodes >= now.min_nodes) {
    if (now.cause != Cause::kStart) {
      return {Action::kStart, false, fmt::format("{}, {} can go on", describe(now.cause), counted(now.nodes, "node"))};
    }
    if (now.last_call_over) {
      return {Action::kStart, false, fmt::format("{} are there, and no other has come", counted(now.nodes, "node"))};
    }
    return {Action::kWait, false,
            fmt::format("{} are there, up to {} may come", counted(now.nodes, "node"), now.max_nodes)};
  }
  const std::string missing = fmt::format("{} of at least {} there", counted(now.nodes, "node"), now.min_nodes);
  if (now.join_timed_out) return {Action::kGiveUp, false, missing + " at the end of the join timeout"};
  return {Action::kWait, false, missing};
}

}  // namespace

Decision decide(const Situation& situation) {
  return situation.running ? while_running(situation) : while_none_runs(situation);
}

}  // namespace lockstep::launch
