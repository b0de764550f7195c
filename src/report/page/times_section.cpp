// Where the time went: parts of each rank's time, and which ranks make the others wait.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "report/page/chart.h"
#include "report/page/markup.h"
#include "report/page/sections.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMostRanks = 16;
constexpr double kStraggles = 1.1;  // times the median of the ranks' own work

struct RankSum {
  int rank = 0;
  std::string host = {};
  std::map<std::string, double> seconds = {};
  bool tells_waiting = false;  // else its other parts have it

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
    for (const RankTimesRecord& record : times.ranks) {
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
      used.insert(name);
      if (std::find(parts.begin(), parts.end(), name) == parts.end()) parts.push_back(name);
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

std::string stragglers(const std::vector<RankSum>& ranks) {
  if (ranks.size() < 2) return "";
  if (std::none_of(ranks.begin(), ranks.end(), [](const RankSum& rank) { return rank.tells_waiting; })) {
    return "<p>This run has not told its communication from its work: who makes the others wait is not known.</p>";
  }
  std::vector<double> work;
  for (const RankSum& rank : ranks) work.push_back(rank.own_work());
  const double middle = median(work);
  std::string text;
  std::size_t count = 0;
  for (const RankSum& rank : ranks) {
    if (!(middle > 0.0) || rank.own_work() <= kStraggles * middle || ++count > 5) continue;
    fmt::format_to(std::back_inserter(text),
                   "<li><b>rank {}</b>{}: {:.0f} % more than the median ({} instead of {})</li>", rank.rank,
                   rank.host.empty() ? "" : " on " + escaped(rank.host), 100.0 * (rank.own_work() / middle - 1.0),
                   seconds_text(rank.own_work()), seconds_text(middle));
  }
  if (count == 0) return "<p>No stragglers: no rank has over 10 % more work of its own than the median.</p>";
  if (count > 5) text += fmt::format("<li>and {} more</li>", count - 5);
  return "<p><b>Stragglers.</b> The own work of these ranks (all but communication) takes longest, and the others wait "
         "for them:</p><ul>" +
         text + "</ul>";
}

std::string rank_bars(const std::vector<RankSum>& all, const std::vector<std::string>& parts) {
  std::vector<const RankSum*> shown;
  for (const RankSum& rank : all) shown.push_back(&rank);
  if (shown.size() > kMostRanks) {
    // Of many ranks those with most own work, which the others wait for.
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
      for (const RankTimesRecord& rank : times.ranks) {
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
         legend(parts) + rank_bars(ranks, parts) + stragglers(ranks) + "</div>" + epochs_chart(run, parts) +
         "</div></section>\n";
}

}  // namespace lockstep::report
