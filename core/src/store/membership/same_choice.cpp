#include "store/membership/same_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "store/membership/delete_by_last_rank.h"
#include "store/membership/meeting.h"

namespace lockstep::comm {
namespace {

struct RankChoice {
  int rank = 0;
  Choice choice;
};

Result<std::vector<RankChoice>> parse(const std::string& lines, int group_size) {
  std::vector<RankChoice> choices;
  std::istringstream input(lines);
  for (std::string line; std::getline(input, line);) {
    RankChoice one;
    std::istringstream words(line);
    if (!(words >> one.rank >> one.choice.is_default >> one.choice.has_option) || one.rank < 0 ||
        one.rank >= group_size) {
      return Status(ErrorCode::kCorrupt,
                    fmt::format("expected 'rank default option value' in the store, found '{}'", line));
    }
    std::getline(words >> std::ws, one.choice.value);
    choices.push_back(std::move(one));
  }
  std::sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return choices;
}

// "rank(s) 1 give(s) enable_reconfigure, and rank(s) 0 do(es) not; all ranks need the same"
Status check_option(const std::vector<RankChoice>& choices, const Roster& roster, const std::string& option) {
  std::vector<int> with, without;
  for (const auto& [rank, choice] : choices) (choice.has_option ? with : without).push_back(rank);
  if (with.empty() || without.empty()) return {};
  return {ErrorCode::kMismatch, fmt::format("{} give(s) {}, and {} do(es) not; all ranks need the same",
                                            roster.list(with), option, roster.list(without))};
}

// "'mpi' on rank(s) 0, 2; 'lockstep' (the default) on rank(s) 1"
Status check(const std::vector<RankChoice>& choices, const Roster& roster, const std::string& named) {
  std::map<std::string, std::vector<int>> ranks;
  bool same = true;
  bool asked = false;
  for (const auto& [rank, choice] : choices) {
    same = same && choice.value == choices.front().choice.value;
    asked = asked || !choice.is_default;
    ranks[fmt::format("'{}'{}", choice.value, choice.is_default ? " (the default)" : "")].push_back(rank);
  }
  if (same || !asked) return {};
  std::string text;
  for (const auto& [what, who] : ranks)
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", what, roster.list(who));
  return {ErrorCode::kMismatch, fmt::format("the members name different {}: {}", named, text)};
}

Status missing(const std::vector<RankChoice>& choices, const Roster& roster, int group_size,
               std::chrono::duration<double> spent) {
  std::vector<int> absent;
  for (int rank = 0; rank < group_size; ++rank) {
    if (std::none_of(choices.begin(), choices.end(), [&](const auto& one) { return one.rank == rank; }))
      absent.push_back(rank);
  }
  return {ErrorCode::kTimeout, fmt::format("only {} of {} ranks came within {:.1f} s; missing: {}", choices.size(),
                                           group_size, spent.count(), roster.list(absent))};
}

Meeting meeting_at(const std::string& prefix, int group_size) {
  return {prefix + "/so_far", prefix + "/outcome", group_size};
}

// Every rank calls this once, also one that refuses.
void forget(Store& store, const std::string& prefix, const Meeting& meeting) {
  const std::vector<std::string> keys{meeting.so_far_key, meeting.outcome_key};
  delete_by_last_rank(store, prefix + "/done", meeting.group_size, keys);
}

}  // namespace

Status check_same_choice(Store& store, const std::string& prefix, const Roster& roster, int rank, int group_size,
                         const Choice& mine, Deadline deadline) {
  Meeting meeting = meeting_at(prefix, group_size);
  meeting.check = [&](const std::string& lines) -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto choices, parse(lines, group_size));
    LOCKSTEP_RETURN_IF_ERROR(check_option(choices, roster, mine.option));
    return check(choices, roster, mine.what);
  };
  meeting.missing = [&](const std::string& lines, std::chrono::duration<double> spent) {
    const auto choices = parse(lines, group_size);
    return choices.ok() ? missing(choices.value(), roster, group_size, spent) : choices.status();
  };
  const auto met = meet(store, meeting,
                        fmt::format("{} {:d} {:d} {}\n", rank, mine.is_default, mine.has_option, mine.value), deadline);
  forget(store, prefix, meeting);
  return met.status();
}

void refuse_choice(Store& store, const std::string& prefix, int group_size, const Status& why) {
  const Meeting meeting = meeting_at(prefix, group_size);
  stay_away(store, meeting, why);
  forget(store, prefix, meeting);
}

}  // namespace lockstep::comm
