// Title, state and the numbers that one looks for first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <vector>

#include "report/page/page.h"

namespace lockstep::report {
namespace {

std::string_view word(RunState state) {
  switch (state) {
    case RunState::kRunning: return "running";
    case RunState::kInterrupted: return "interrupted";
    case RunState::kFinished: return "finished";
    case RunState::kFailed: return "failed";
  }
  return "";
}

std::string tile(std::string_view name, const std::string& value, const std::string& more = "") {
  return fmt::format(
      "<div class='tile'><div class='name'>{}</div><div class='value'>{}</div><div class='more'>{}</div></div>", name,
      escaped(value), escaped(more));
}

// The epoch with the largest value (or the smallest, with sign -1); null when none has one.
const PassRecord* best(const std::vector<PassRecord>& passes, std::string_view name, double sign) {
  const PassRecord* found = nullptr;
  for (const PassRecord& pass : passes) {
    const double value = sign * scalar(pass.scalars, name);
    if (std::isfinite(value) && (found == nullptr || value > sign * scalar(found->scalars, name))) found = &pass;
  }
  return found;
}

std::string of_epoch(const PassRecord& pass, std::string_view what) {
  return fmt::format("{}, epoch {}", what, pass.epoch + 1);
}

double communication_part(const RunRecord& run) {
  double communication = 0.0;
  double all = 0.0;
  bool told = false;
  for (const TimesRecord& times : run.times) {
    for (const RankTimes& rank : times.ranks) {
      for (const auto& [name, seconds] : rank.seconds) {
        all += seconds;
        if (name != "communication") continue;
        communication += seconds;
        told = true;
      }
    }
  }
  return told && all > 0.0 ? communication / all : std::numeric_limits<double>::quiet_NaN();
}

std::string tiles(const RunRecord& run) {
  std::string text;
  if (const auto* pass = best(run.evaluations, "accuracy", 1.0)) {
    text += tile("Best accuracy", percent_text(scalar(pass->scalars, "accuracy")), of_epoch(*pass, "evaluation"));
  }
  if (const auto* pass = best(run.evaluations, "loss", -1.0)) {
    text += tile("Best loss", number_text(scalar(pass->scalars, "loss")), of_epoch(*pass, "evaluation"));
  }
  if (!run.epochs.empty() && !std::isnan(scalar(run.epochs.back().scalars, "loss"))) {
    text += tile("Training loss", number_text(scalar(run.epochs.back().scalars, "loss")),
                 of_epoch(run.epochs.back(), "last"));
  }
  std::vector<double> seconds;
  std::vector<double> rates;
  for (const PassRecord& pass : run.epochs) {
    if (pass.seconds <= 0.0) continue;
    seconds.push_back(pass.seconds);
    if (pass.samples > 0) rates.push_back(static_cast<double>(pass.samples) / pass.seconds);
  }
  if (!rates.empty())
    text += tile("Speed", fmt::format("{}/s", number_text(median(rates))), "pictures, median of epochs");
  if (!seconds.empty()) {
    text += tile("Epoch", seconds_text(median(seconds)), fmt::format("training, median of {}", seconds.size()));
  }
  if (const double part = communication_part(run); !std::isnan(part)) {
    text += tile("Communication", percent_text(part), "of the time, mean of ranks");
  }
  for (const auto& [name, value] : run.results) text += tile(escaped(name), number_text(value), "result");
  return text;
}

std::string when_and_where(const RunRecord& run) {
  if (run.sessions.empty()) return "";
  double seconds = 0.0;
  std::set<std::string> hosts;
  for (const Session& session : run.sessions) seconds += std::max(0.0, session.last_event - session.started);
  for (const TimesRecord& times : run.times) {
    for (const RankTimes& rank : times.ranks) hosts.insert(rank.host);
  }
  const Session& last = run.sessions.back();
  hosts.insert(last.host);
  hosts.erase("");
  std::string where;
  if (hosts.size() == 1) where = " on " + *hosts.begin();
  if (hosts.size() > 1) where = fmt::format(" on {} machines", hosts.size());
  const std::string starts = run.sessions.size() > 1 ? fmt::format(", {} starts", run.sessions.size()) : std::string();
  return escaped(fmt::format("{} process{}{}, started {}{}, took {}", last.world_size, last.world_size == 1 ? "" : "es",
                             where, utc_text(run.sessions.front().started), starts, seconds_text(seconds)));
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string summary_section(const RunRecord& run) {
  std::string text = fmt::format(
      "<header><div class='title'><h1>{}</h1><span class='badge {}'>{}</span></div><p class='soft'>{}</p></header>\n",
      escaped(run.name), word(run.state), word(run.state), when_and_where(run));
  if (run.state == RunState::kFailed) text += fmt::format("<div class='error'>{}</div>\n", escaped(run.error));
  if (run.bad_lines > 0) {
    text += fmt::format("<p class='note'>{} damaged line{} of the log left out.</p>\n", run.bad_lines,
                        run.bad_lines == 1 ? " is" : "s are");
  }
  const std::string numbers = tiles(run);
  return numbers.empty() ? text : text + "<div class='tiles'>" + numbers + "</div>\n";
}

}  // namespace lockstep::report
