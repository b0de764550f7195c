// Which of the processes that made a group live, where nobody else can say so. The first one that lives leads: it waits
// until each of the others has come to its store or is gone, and tells those who came what to meet with. If it dies
// too, the next one leads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "attendance.h"
#include "base/number_text.h"
#include "base/random.h"
#include "store/membership/meeting_place.h"
#include "store/tcp/socket.h"
#include "store/tcp/status_text.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kWhyNot = "refused ";
// How often the leader looks at its store, and at the ports of those who have not come.
constexpr auto kLeaderLooksEvery = std::chrono::microseconds(500);
constexpr auto kAskEvery = milliseconds(10);
// A machine whose kernel does not answer for so long counts as lost.
constexpr auto kUnreachableAfter = std::chrono::seconds(3);
constexpr auto kValueTime = std::chrono::seconds(5);  // the value is in the store
constexpr auto kLeadersTime = milliseconds(500);      // for its own error

struct Seen {
  std::vector<bool> gone;         // no process listens there any more
  std::vector<bool> unreachable;  // one of these may live
  std::vector<bool> silent;       // there was no time to wait for an answer

  explicit Seen(std::vector<bool> known) : gone(std::move(known)), unreachable(gone.size()), silent(gone.size()) {}
};

void look_at(const std::vector<ReconfigureHandle>& members, std::size_t index, Deadline deadline, Seen& seen) {
  for (std::size_t i = 0; i < members.size(); ++i) {  // what is true of a machine need not be asked twice
    if (!seen.unreachable[i] || members[i].store.host != members[index].store.host) continue;
    seen.unreachable[index] = true;
    return;
  }
  switch (ask_port(members[index].store, earlier(deadline, Deadline::after(kUnreachableAfter)))) {
    case PortAnswer::kListens: break;
    case PortAnswer::kRefused: seen.gone[index] = true; break;
    case PortAnswer::kNone: (deadline.expired() ? seen.silent : seen.unreachable)[index] = true; break;
  }
}

// Those who cannot be reached may be the larger part, and go on without this one.
Status check_majority(const std::vector<ReconfigureHandle>& members, const Seen& seen) {
  std::size_t here = 0, there = 0;
  std::size_t first = members.size();
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (seen.gone[i]) continue;
    first = std::min(first, i);
    ++(seen.unreachable[i] ? there : here);
  }
  if (there < here || (there == here && !seen.unreachable[first])) return {};
  return {ErrorCode::kPeerFailed,
          fmt::format("{} of {} members cannot be reached, and may live on the other side of a broken network; the "
                      "smaller part does not go on by itself. Give the handles of those that are to go on",
                      there, here + there)};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream input(text);
  for (std::string line; std::getline(input, line);) lines.push_back(line);
  return lines;
}

std::ptrdiff_t times(const std::vector<std::string>& all, const std::string& one) {
  return std::count(all.begin(), all.end(), one);
}

std::string meeting_of(const std::string& keys, std::int64_t round) {
  return fmt::format("{}/{}", keys, round);
}
std::string so_far_key(const std::string& keys, std::int64_t round) {
  return meeting_of(keys, round) + "/so_far";
}
std::string outcome_key(const std::string& keys, std::int64_t round) {
  return meeting_of(keys, round) + "/outcome";
}

Status not_come(const std::vector<ReconfigureHandle>& members, const std::vector<std::size_t>& missing,
                const Seen& seen) {
  std::vector<std::string> living, lost;
  for (const std::size_t index : missing) (seen.silent[index] ? lost : living).push_back(describe(members[index]));
  std::string text;
  if (!living.empty()) text = fmt::format("{} live(s) and did not call reconfigure in time", fmt::join(living, ", "));
  if (!lost.empty()) text += fmt::format("{}{} cannot be reached", text.empty() ? "" : "; ", fmt::join(lost, ", "));
  return {ErrorCode::kTimeout, text};
}

// A number that nobody has used.
Result<std::int64_t> fresh_uuid() {
  std::uint64_t random = 0;
  LOCKSTEP_RETURN_IF_ERROR(fill_random(std::as_writable_bytes(std::span(&random, 1))));
  return static_cast<std::int64_t>(random >> 1);
}

}  // namespace

// Returns the outcome, which it has published.
Result<std::string> MeetingPlace::lead(const Handles& members, std::vector<bool>& gone, const std::string& keys,
                                       Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto attendance, attend(own_, deadline));
  TcpStore& store = *attendance->store();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::int64_t round, store.add(keys + "/round", 0));
  LOCKSTEP_RETURN_IF_ERROR(attendance->come(meeting_of(keys, round)));
  LOCKSTEP_RETURN_IF_ERROR(store.append(so_far_key(keys, round), own_.id + "\n"));
  Seen seen(gone);
  Status why;
  std::size_t seen_ended = 0;
  const auto start = Deadline::Clock::now();
  Deadline next_question = Deadline::after(milliseconds(0));
  while (true) {
    const auto so_far = store.get(so_far_key(keys, round), Deadline::after(kValueTime));
    if (so_far.status().code() == ErrorCode::kTimeout && !deadline.expired()) continue;
    LOCKSTEP_RETURN_IF_ERROR(so_far.status());
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> ended, attendance->ended());
    const std::vector<std::string> come = lines_of(so_far.value());
    const bool asks = next_question.expired() || ended.size() != seen_ended;
    seen_ended = ended.size();
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < members.size(); ++i) {
      // Who gave up and lives may come again.
      const bool here = times(come, members[i].id) > times(ended, members[i].id);
      if (seen.gone[i] || seen.unreachable[i] || here) continue;
      if (asks) look_at(members, i, deadline, seen);
      if (!seen.gone[i] && !seen.unreachable[i]) missing.push_back(i);
    }
    if (asks) next_question = Deadline::after(pause_of_questions(start, kAskEvery));
    if (missing.empty()) why = check_majority(members, seen);
    if (missing.empty()) break;
    if (deadline.expired()) {
      why = not_come(members, missing, seen);
      break;
    }
    std::this_thread::sleep_for(kLeaderLooksEvery);
  }
  std::string outcome = why.ok() ? std::string() : std::string(kWhyNot) + to_text(why);
  if (why.ok()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::int64_t uuid, fresh_uuid());
    outcome = fmt::format("{}\n", uuid);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!seen.gone[i] && !seen.unreachable[i]) outcome += to_text(members[i]) + "\n";
    }
  }
  // First the number: who has read the outcome may call again at once, and must not come to the same round.
  LOCKSTEP_RETURN_IF_ERROR(store.add(keys + "/round", 1).status());
  LOCKSTEP_RETURN_IF_ERROR(store.set(outcome_key(keys, round), outcome));
  static_cast<void>(store.delete_prefix(meeting_of(keys, round - 1) + "/"));  // everybody has read the outcome
  return outcome;
}

// Returns an outcome that concerns this process, or a refusal.
Result<std::string> MeetingPlace::follow(const ReconfigureHandle& leader, const std::string& keys, Deadline deadline) {
  const Status silent(ErrorCode::kTimeout,
                      fmt::format("{}, which is to lead, lives and has not told the others who goes on; does it call "
                                  "reconfigure, or is it stopped?",
                                  describe(leader)));
  const auto attendance = attend(leader, deadline);
  LOCKSTEP_RETURN_IF_ERROR(attendance.status());
  TcpStore& store = *attendance.value()->store();
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::int64_t round, store.add(keys + "/round", 0));
    LOCKSTEP_RETURN_IF_ERROR(attendance.value()->come(meeting_of(keys, round)));
    LOCKSTEP_RETURN_IF_ERROR(store.append(so_far_key(keys, round), own_.id + "\n"));
    // The leader gives up at its own deadline, and says more than this rank could.
    const Deadline later = deadline.is_never() ? deadline : Deadline::at(deadline.when() + kLeadersTime);
    auto outcome = store.get(outcome_key(keys, round), later);
    if (outcome.status().code() == ErrorCode::kTimeout) return silent;
    LOCKSTEP_RETURN_IF_ERROR(outcome.status());
    if (outcome->starts_with(kWhyNot) || outcome->find("|" + own_.id + "|") != std::string::npos) return outcome;
  }
}

Result<ReconfigureCall> MeetingPlace::find_survivors(const std::string& group, const std::vector<std::string>& handles,
                                                     Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Handles members, members_of({.group = group, .handles = handles}));
  auto found = search(group, members, deadline);
  if (!found.ok()) end_attendance();
  return found;
}

Result<ReconfigureCall> MeetingPlace::search(const std::string& group, const Handles& members, Deadline deadline) {
  // The length keeps one group's keys from beginning with another's.
  const std::string keys = fmt::format("survivors/{}/{}", group.size(), group);
  Seen seen{std::vector<bool>(members.size())};
  while (true) {
    std::size_t first = 0;
    for (; members[first].id != own_.id; ++first) {
      if (!seen.gone[first] && !seen.unreachable[first]) look_at(members, first, deadline, seen);
      if (!seen.gone[first] && !seen.unreachable[first]) break;
    }
    const bool leads = members[first].id == own_.id;
    auto outcome = leads ? lead(members, seen.gone, keys, deadline) : follow(members[first], keys, deadline);
    if (!outcome.ok()) end_attendance();
    if (!leads && !deadline.expired()) {
      const ErrorCode code = outcome.status().code();
      seen.gone[first] = code == ErrorCode::kPeerFailed;
      if (code == ErrorCode::kUnavailable || seen.gone[first]) continue;  // the leader ends, or the way to it is broken
    }
    LOCKSTEP_RETURN_IF_ERROR(outcome.status());
    if (outcome->starts_with(kWhyNot)) return status_from(outcome->substr(kWhyNot.size()));
    const std::vector<std::string> lines = lines_of(outcome.value());
    const auto uuid = number_from_text<std::int64_t>(lines.empty() ? "" : lines.front());
    if (!uuid) return Status(ErrorCode::kCorrupt, "the leader's outcome does not begin with a number");
    ReconfigureCall call{.group = group, .uuid = *uuid, .deadline = deadline};
    call.handles.assign(lines.begin() + 1, lines.end());
    return call;
  }
}

}  // namespace lockstep::comm
