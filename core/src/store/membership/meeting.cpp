#include "store/membership/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "lockstep/base/log.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

constexpr auto kLastLook = std::chrono::seconds(1);
constexpr auto kReportEvery = std::chrono::seconds(10);
constexpr std::string_view kRefusal = "refused ";  // stands in place of the lines

Result<std::string> parse_outcome(const std::string& published) {
  if (!is_refusal(published)) return published;
  return status_from(std::string_view(published).substr(kRefusal.size()));
}

// Publishes that the ranks will not go on, unless an outcome is there already; returns the published outcome.
Result<Bytes> publish_refusal(Store& store, const Meeting& meeting, const Status& why) {
  return store.compare_set(meeting.outcome_key, "", std::string(kRefusal) + to_text(why));
}

bool is_complete(const Meeting& meeting, const std::string& lines) {
  return std::count(lines.begin(), lines.end(), '\n') == meeting.group_size;
}

Status why_given_up(const Meeting& meeting, const std::string& lines, std::chrono::duration<double> spent) {
  if (!is_complete(meeting, lines)) return meeting.missing(lines, spent);
  std::string_view last = std::string_view(lines).substr(0, lines.size() - 1);
  last.remove_prefix(last.rfind('\n') + 1);
  return {ErrorCode::kTimeout, fmt::format("all {} ranks came within {:.1f} s, but the last of them, which wrote '{}', "
                                           "stopped before it told the others",
                                           meeting.group_size, spent.count(), last)};
}

// What all ranks get when this one waits no longer. The last rank may have come in the meantime.
Result<std::string> give_up(Store& store, const Meeting& meeting, std::chrono::duration<double> spent) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Bytes lines, store.get(meeting.so_far_key, Deadline::after(kLastLook)));
  LOCKSTEP_ASSIGN_OR_RETURN(const Bytes outcome, publish_refusal(store, meeting, why_given_up(meeting, lines, spent)));
  return parse_outcome(outcome);
}

// The rank that came first says who is missing while it waits.
Result<Bytes> await_outcome(Store& store, const Meeting& meeting, bool first, Deadline deadline) {
  const auto start = Deadline::Clock::now();
  while (true) {
    auto outcome = store.get(meeting.outcome_key, first ? earlier(deadline, Deadline::after(kReportEvery)) : deadline);
    if (outcome.status().code() != ErrorCode::kTimeout || deadline.expired()) return outcome;
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes lines, store.get(meeting.so_far_key, Deadline::after(kLastLook)));
    if (is_complete(meeting, lines)) continue;
    log::warning("still waiting: " + meeting.missing(lines, Deadline::Clock::now() - start).message());
  }
}

}  // namespace

bool is_refusal(std::string_view outcome) {
  return outcome.starts_with(kRefusal);
}

void stay_away(Store& store, const Meeting& meeting, const Status& why) {
  (void)publish_refusal(store, meeting, why);
}

Result<std::string> meet(Store& store, const Meeting& meeting, const std::string& line, Deadline deadline) {
  const auto start = Deadline::Clock::now();
  LOCKSTEP_RETURN_IF_ERROR(store.append(meeting.so_far_key, line));
  LOCKSTEP_ASSIGN_OR_RETURN(const Bytes lines, store.get(meeting.so_far_key, deadline));
  if (const Status wrong = meeting.check(lines); !wrong.ok()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes outcome, publish_refusal(store, meeting, wrong));
    const auto published = parse_outcome(outcome);
    return published.ok() ? wrong : published.status();  // the others may have gone on already
  }
  if (is_complete(meeting, lines)) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes outcome, store.compare_set(meeting.outcome_key, "", lines));
    return parse_outcome(outcome);
  }
  const auto outcome = await_outcome(store, meeting, lines.starts_with(line), deadline);
  if (outcome.ok()) return parse_outcome(outcome.value());
  if (outcome.status().code() == ErrorCode::kPeerFailed || outcome.status().code() == ErrorCode::kMismatch) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Bytes published, publish_refusal(store, meeting, outcome.status()));
    return parse_outcome(published);
  }
  if (outcome.status().code() != ErrorCode::kTimeout) {
    return outcome.status().with_context("while waiting for the other ranks");
  }
  return give_up(store, meeting, Deadline::Clock::now() - start);
}

}  // namespace lockstep::comm
