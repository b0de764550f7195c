// Where the time went: parts of each rank's time, and which ranks make the others wait.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "lockstep/report/stragglers.h"
#include "report/page/chart.h"
#include "report/page/page.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMostRanks = 16;
constexpr std::size_t kMostListed = 5;

struct RankSum {
  int rank = 0;
  std::string host = {};
  std::map<std::string, double> seconds = {};
  bool tells_waiting = false;  // else the time of waiting is in its other parts

  double all() const {
    double sum = 0.0;
    for (const auto& [name, value] : seconds) sum += value;
    return sum;
  }
  // All but waiting for others.
  double own_work() const {
    const auto waiting = seconds.find("communication");
    return all() - (waiting == seconds.end() ? 0.0 : waiting->second);
  }
};

std::vector<RankSum> sums(const RunRecord& run) {
  std::map<int, RankSum> by_rank;
  for (const TimesRecord& times : run.times) {
    for (const RankTimes& record : times.ranks) {
      RankSum& sum = by_rank[record.rank];
      sum.rank = record.rank;
      sum.host = record.host;
      for (const auto& [name, seconds] : record.seconds) {
        sum.tells_waiting |= name == "communication";
        if (std::isfinite(seconds) && seconds > 0.0) sum.seconds[name] += seconds;
      }
    }
  }
  std::vector<RankSum> list;
  list.reserve(by_rank.size());
  for (auto& [rank, sum] : by_rank) list.push_back(std::move(sum));
  return list;
}

// The three that are known come first, and have a colour of their own.
constexpr std::string_view kKnown[] = {"input", "compute", "communication"};

std::vector<std::string> parts_of(const std::vector<RankSum>& ranks) {
  std::vector<std::string> parts(std::begin(kKnown), std::end(kKnown));
  std::set<std::string> used;
  for (const RankSum& rank : ranks) {
    for (const auto& [name, seconds] : rank.seconds) {
      const bool is_known = std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown);
      if (used.insert(name).second && !is_known) parts.push_back(name);
    }
  }
  std::erase_if(parts, [&](const std::string& name) { return used.count(name) == 0; });
  return parts;
}

int colour_of(const std::string& part) {
  return part == kKnown[0] ? 2 : part == kKnown[1] ? 1 : part == kKnown[2] ? 3 : 4;
}

std::string legend(const std::vector<std::string>& parts) {
  std::string text = "<div class='legend'>";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    fmt::format_to(std::back_inserter(text), "<span class='key box c{}'>{}</span>", colour_of(parts[i]),
                   escaped(parts[i]));
  }
  return text + "</div>";
}

std::string bar(const RankSum& rank, const std::vector<std::string>& parts, double longest) {
  std::string text =
      fmt::format("<span class='who' title='{1}'>rank {0}{2}</span><div class='bar'>", rank.rank, escaped(rank.host),
                  rank.host.empty() ? "" : " <span class='soft'>" + escaped(rank.host) + "</span>");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto found = rank.seconds.find(parts[i]);
    if (found == rank.seconds.end() || longest <= 0.0) continue;
    fmt::format_to(std::back_inserter(text), "<i class='c{}' style='width:{:.2f}%' title='{}: {}'></i>",
                   colour_of(parts[i]), 100.0 * found->second / longest, escaped(parts[i]),
                   seconds_text(found->second));
  }
  fmt::format_to(std::back_inserter(text), "</div><span class='sum'>{}</span>", seconds_text(rank.all()));
  return text;
}

std::string stragglers_of(const std::vector<RankSum>& ranks) {
  if (ranks.size() < 2) return "";
  if (std::none_of(ranks.begin(), ranks.end(), [](const RankSum& rank) { return rank.tells_waiting; })) {
    return "<p>This run did not measure communication and work apart, so nobody knows who makes the others wait.</p>";
  }
  std::vector<RankTimes> times;
  for (const RankSum& rank : ranks) {
    times.push_back({rank.rank, rank.host, Scalars(rank.seconds.begin(), rank.seconds.end())});
    if (rank.tells_waiting) times.back().seconds.emplace_back("communication", 0.0);  // also of ranks that never waited
  }
  const std::vector<Straggler> found = stragglers(times);
  if (found.empty()) return "<p>No stragglers: no rank has over 10 % more work of its own than the median.</p>";
  std::string text;
  for (std::size_t i = 0; i < std::min(found.size(), kMostListed); ++i) {
    const Straggler& one = found[i];
    fmt::format_to(std::back_inserter(text),
                   "<li><b>rank {}</b>{}: {:.0f} % more than the median ({} instead of {})</li>", one.rank,
                   one.host.empty() ? "" : " on " + escaped(one.host),
                   100.0 * (one.own_seconds / one.median_seconds - 1.0), seconds_text(one.own_seconds),
                   seconds_text(one.median_seconds));
  }
  if (found.size() > kMostListed) text += fmt::format("<li>and {} more</li>", found.size() - kMostListed);
  return "<p><b>Stragglers.</b> The own work of these ranks (all but communication) takes longest, and the others wait "
         "for them:</p><ul>" +
         text + "</ul>";
}

std::string rank_bars(const std::vector<RankSum>& all, const std::vector<std::string>& parts) {
  std::vector<const RankSum*> shown;
  shown.reserve(all.size());
  for (const RankSum& rank : all) shown.push_back(&rank);
  if (shown.size() > kMostRanks) {
    // Only the ranks with the most work of their own: the others wait for these.
    std::stable_sort(shown.begin(), shown.end(), [](auto* a, auto* b) { return a->own_work() > b->own_work(); });
    shown.resize(kMostRanks);
  }
  double longest = 0.0;
  for (const RankSum* rank : shown) longest = std::max(longest, rank->all());
  std::string text = "<div class='bars'>";
  for (const RankSum* rank : shown) text += bar(*rank, parts, longest);
  text += "</div>";
  if (shown.size() < all.size()) {
    text +=
        fmt::format("<p class='note'>The {} of {} ranks with most work of their own.</p>", shown.size(), all.size());
  }
  return text;
}

std::string epochs_chart(const RunRecord& run, const std::vector<std::string>& parts) {
  if (run.times.size() < 2) return "";
  Chart chart{.title = "Seconds per epoch and part, mean of the ranks", .x_name = "epoch", .from_zero = true};
  for (std::size_t i = 0; i < parts.size() && i < 8; ++i) {
    Curve curve{.name = parts[i], .colour = colour_of(parts[i]), .dots = true};
    double most = 0.0;
    for (const TimesRecord& times : run.times) {
      double sum = 0.0;
      for (const RankTimes& rank : times.ranks) {
        const double seconds = scalar(rank.seconds, parts[i]);
        if (std::isfinite(seconds)) sum += seconds;
      }
      sum /= static_cast<double>(std::max<std::size_t>(1, times.ranks.size()));
      most = std::max(most, sum);
      curve.points.push_back({static_cast<double>(times.epoch + 1), sum});
    }
    if (most > 0.0) chart.curves.push_back(std::move(curve));
  }
  return to_html(chart);
}

}  // namespace

std::string times_section(const RunRecord& run) {
  const std::vector<RankSum> ranks = sums(run);
  if (ranks.empty()) return "";
  const std::vector<std::string> parts = parts_of(ranks);
  return "<section><h2>Where the time went</h2><div class='grid'><div class='card'><h3>Each rank, all epochs</h3>" +
         legend(parts) + rank_bars(ranks, parts) + stragglers_of(ranks) + "</div>" + epochs_chart(run, parts) +
         "</div></section>\n";
}

}  // namespace lockstep::report
