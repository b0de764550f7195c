#include "lockstep/report/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/page/page.h"

namespace lockstep::report {
namespace {

constexpr double kStraggles = 1.1;  // times the median of the ranks' own work
constexpr std::size_t kMostNamed = 5;

double own_work(const RankTimes& times) {
  double sum = 0.0;
  for (const auto& [name, seconds] : times.seconds) {
    if (name != "communication" && std::isfinite(seconds) && seconds > 0.0) sum += seconds;
  }
  return sum;
}

bool tells_waiting(const RankTimes& times) {
  return std::any_of(times.seconds.begin(), times.seconds.end(),
                     [](const auto& part) { return part.first == "communication"; });
}

}  // namespace

std::vector<Straggler> stragglers(std::span<const RankTimes> ranks) {
  if (ranks.size() < 2 || std::none_of(ranks.begin(), ranks.end(), tells_waiting)) return {};
  std::vector<double> work;
  for (const RankTimes& rank : ranks) work.push_back(own_work(rank));
  const double middle = median(work);
  std::vector<Straggler> found;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (middle > 0.0 && work[i] > kStraggles * middle) found.push_back({ranks[i].rank, ranks[i].host, work[i], middle});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Straggler& a, const Straggler& b) { return a.own_seconds > b.own_seconds; });
  return found;
}

std::string stragglers_text(std::span<const Straggler> found) {
  std::string text;
  for (std::size_t i = 0; i < std::min(found.size(), kMostNamed); ++i) {
    const Straggler& one = found[i];
    text +=
        fmt::format("{}rank {}{}: {:.0f} % more work than the median", i == 0 ? "" : "; ", one.rank,
                    one.host.empty() ? "" : " on " + one.host, 100.0 * (one.own_seconds / one.median_seconds - 1.0));
  }
  if (found.size() > kMostNamed) text += fmt::format("; and {} more", found.size() - kMostNamed);
  return text;
}

}  // namespace lockstep::report
