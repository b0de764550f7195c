#include "flight/waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "flight/report.h"

namespace lockstep::flight {
namespace {

constexpr std::uint64_t kNotYet = UINT64_MAX;

// Of one rank in one group.
struct Calls {
  std::size_t record = 0;
  std::map<std::uint64_t, std::size_t> operations;  // index in the record, by number
};

Calls calls_of(const RankRecord& record, const SharedGroup::Member& member) {
  Calls calls{member.record, {}};
  for (std::size_t i = 0; i < record.operations.size(); ++i) {
    const Operation& operation = record.operations[i];
    if (operation.group != member.group || is_message(operation.op) || operation.op == Op::kOther) continue;
    calls.operations[operation.number] = i;
  }
  return calls;
}

std::uint64_t end_of(const RankRecord& record, const Operation& operation) {
  return operation.under_way() ? record.now : std::min(operation.ended, record.now);
}

bool blocks(const Operation& operation) {
  return operation.waited != 0 && operation.outcome != Outcome::kHandedOver;
}

std::uint64_t before(std::uint64_t last, std::uint64_t begin, std::uint64_t end) {
  return last > begin ? std::min(last, end) - begin : 0;
}

}  // namespace

Waits::Waits(std::span<const RankRecord> records) : records_(records) {
  for (const RankRecord& record : records_) arrivals_.emplace_back(record.operations.size());
  for (const SharedGroup& group : shared_groups(records_)) {
    std::map<std::string, std::vector<SharedGroup::Member>> machines;
    for (const SharedGroup::Member& member : group.members) machines[records_[member.record].host].push_back(member);
    for (const auto& [host, members] : machines) {
      has_others_ = has_others_ || members.size() < group.ranks.size();
      if (members.size() > 1) compare(members);
    }
  }
  std::sort(meetings_.begin(), meetings_.end(), [](const Meeting& a, const Meeting& b) { return a.last < b.last; });
}

void Waits::compare(std::span<const SharedGroup::Member> members) {
  std::vector<Calls> ranks;
  for (const SharedGroup::Member& member : members) ranks.push_back(calls_of(records_[member.record], member));
  std::map<std::uint64_t, std::size_t> numbers;  // by how many ranks each was called
  for (const Calls& rank : ranks) {
    for (const auto& [number, index] : rank.operations) ++numbers[number];
  }
  // Waits count in the order of each rank's calls, and `numbers` is in that order.
  for (const auto& [number, callers] : numbers) {
    std::vector<std::pair<std::uint64_t, std::size_t>> calls;  // when, and who
    bool is_known = true;
    bool is_awaited = false;
    for (const Calls& rank : ranks) {
      const auto found = rank.operations.find(number);
      if (found != rank.operations.end()) {
        calls.emplace_back(records_[rank.record].operations[found->second].called, rank.record);
        continue;
      }
      const bool comes_later = !rank.operations.empty() && rank.operations.rbegin()->first < number;
      is_awaited = is_awaited || (comes_later && !records_[rank.record].ended);
      is_known = is_known && comes_later;
    }
    if (!is_known) continue;
    std::sort(calls.begin(), calls.end());
    const std::uint64_t last = is_awaited ? kNotYet : calls.back().first;
    Meeting meeting{calls.front().first, 0, last, calls.back().second, 0};
    for (const Calls& rank : ranks) {
      const auto found = rank.operations.find(number);
      if (found == rank.operations.end()) continue;
      arrivals_[rank.record][found->second].last = last;
      const Operation& operation = records_[rank.record].operations[found->second];
      if (blocks(operation)) {
        meeting.wait += static_cast<double>(before(last, operation.waited, end_of(records_[rank.record], operation)));
      }
    }
    if (calls.size() < ranks.size()) continue;
    meeting.before_last = calls[calls.size() - 2].first;
    meeting.wait /= static_cast<double>(calls.size() - 1);
    meetings_.push_back(meeting);
  }
}

TimeSplit Waits::split(std::size_t record, std::uint64_t begin, std::uint64_t end) const {
  const RankRecord& rank = records_[record];
  TimeSplit split;
  split.span = end > begin ? end - begin : 0;
  std::uint64_t until = begin;
  for (std::size_t i = 0; i < rank.operations.size(); ++i) {
    const Operation& operation = rank.operations[i];
    if (!blocks(operation)) continue;
    const std::uint64_t from = std::max(until, operation.waited);
    const std::uint64_t to = std::min(end_of(rank, operation), end);
    if (to <= from) continue;
    const std::uint64_t waiting = before(arrivals_[record][i].last, from, to);
    split.waiting += waiting;
    split.communication += to - from - waiting;
    until = to;
  }
  return split;
}

TimeSplit Waits::split(std::size_t record) const {
  const RankRecord& rank = records_[record];
  if (rank.operations.empty()) return {};
  const std::uint64_t begin = rank.operations.front().called;
  const auto first =
      std::find_if(rank.steps.begin(), rank.steps.end(), [&](const StepEnd& step) { return step.ended >= begin; });
  const auto steps = static_cast<std::size_t>(rank.steps.end() - first);
  if (steps < 2) return split(record, begin, rank.now);
  const StepEnd& last = rank.steps.back();
  TimeSplit result = split(record, first->ended, last.ended);
  result.steps = steps - 1;
  // Another thread of the program may have waited for batches meanwhile.
  const std::uint64_t most = result.compute();
  result.input = last.input > first->input ? std::min(last.input - first->input, most) : 0;
  return result;
}

std::optional<Laggard> find_laggard(std::span<const RankRecord> records, double least) {
  constexpr std::size_t kLatest = 100;
  constexpr std::size_t kEnough = 20;
  constexpr double kMost = 2.0 / 3;  // of all waits
  const Waits waits(records);
  std::span<const Meeting> latest = waits.meetings();
  latest = latest.last(std::min(latest.size(), kLatest));
  if (latest.size() < kEnough) return {};
  std::vector<double> caused(records.size());
  double all = 0;
  std::uint64_t begin = latest.front().first;
  for (const Meeting& meeting : latest) {
    caused[meeting.last_record] += meeting.wait;
    all += meeting.wait;
    begin = std::min(begin, meeting.first);
  }
  const auto most = std::max_element(caused.begin(), caused.end());
  const double span = static_cast<double>(latest.back().last - begin);
  if (span <= 0 || *most < kMost * all || *most < least * span) return {};
  Laggard laggard{.record = static_cast<std::size_t>(most - caused.begin()),
                  .of = latest.size(),
                  .cost = std::min(1.0, *most / span),
                  .has_others = waits.has_others()};
  std::vector<std::uint64_t> margins;
  for (const Meeting& meeting : latest) {
    if (meeting.last_record == laggard.record) margins.push_back(meeting.last - meeting.before_last);
  }
  if (margins.empty()) return {};
  laggard.last = margins.size();
  const auto middle = margins.begin() + static_cast<std::ptrdiff_t>(margins.size() / 2);
  std::nth_element(margins.begin(), middle, margins.end());
  laggard.margin = *middle;
  return laggard;
}

std::string describe(const RankRecord& record, const Laggard& laggard) {
  return fmt::format(
      "rank {} (pid {} on {}) came last{} to {} of the last {} collectives, in the median by {}: the "
      "others waited for it for {:.0f} % of the time",
      record.rank, record.pid, record.host, laggard.has_others ? " of the ranks of this machine" : "", laggard.last,
      laggard.of, span_text(laggard.margin), 100 * laggard.cost);
}

}  // namespace lockstep::flight
