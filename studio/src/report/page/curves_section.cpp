// Curves over epochs and steps, and their numbers as a table.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "report/page/chart.h"
#include "report/page/page.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kBundles = 300;
constexpr std::size_t kMostNames = 24;
constexpr std::size_t kMostRows = 500;

bool is_part(const std::string& name) {
  return name.find("accuracy") != std::string::npos || name.find("top") == 0;
}

std::string title_of(std::string name) {
  if (name == "lr") return "Learning rate";
  std::replace(name.begin(), name.end(), '_', ' ');
  if (!name.empty() && name[0] >= 'a' && name[0] <= 'z') name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

// The names of all passes, those that one looks for first in front.
std::vector<std::string> names_of(const RunRecord& run) {
  std::vector<std::string> names;
  std::set<std::string> known;
  const auto add = [&](const std::vector<PassRecord>& passes) {
    for (const PassRecord& pass : passes) {
      for (const auto& [name, value] : pass.scalars) {
        if (known.insert(name).second) names.push_back(name);
      }
    }
  };
  add(run.epochs);
  add(run.evaluations);
  const auto order = [](const std::string& name) { return name == "loss" ? 0 : name == "accuracy" ? 1 : 2; };
  std::stable_sort(names.begin(), names.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return names;
}

Curve curve_of(const std::vector<PassRecord>& passes, const std::string& scalar_name, const char* name, int colour) {
  Curve curve{.name = name, .colour = colour, .dots = true};
  bool any = false;
  for (const PassRecord& pass : passes) {
    const double value = scalar(pass.scalars, scalar_name);
    any = any || std::isfinite(value);
    curve.points.push_back({static_cast<double>(pass.epoch + 1), value});
    curve.value = is_part(scalar_name) ? percent_text(value) : number_text(value);
  }
  if (!any) curve.points.clear();
  return curve;
}

std::string epoch_chart(const RunRecord& run, const std::string& name) {
  Chart chart{.title = title_of(name), .x_name = "epoch", .percent = is_part(name)};
  for (Curve curve : {curve_of(run.epochs, name, "training", 1), curve_of(run.evaluations, name, "evaluation", 2)}) {
    for (const PlotPoint& point : curve.points) chart.percent = chart.percent && !(point.y > 1.0);
    if (!curve.points.empty()) chart.curves.push_back(std::move(curve));
  }
  return chart.curves.empty() ? "" : to_html(chart);
}

std::string speed_chart(const RunRecord& run) {
  Curve curve{.name = "pictures per second", .colour = 3, .dots = true};
  for (const PassRecord& pass : run.epochs) {
    if (pass.samples <= 0 || pass.seconds <= 0.0) continue;
    const double rate = static_cast<double>(pass.samples) / pass.seconds;
    curve.points.push_back({static_cast<double>(pass.epoch + 1), rate});
    curve.value = number_text(rate);
  }
  if (curve.points.size() < 2) return "";
  return to_html({.title = "Speed of training", .x_name = "epoch", .curves = {std::move(curve)}, .from_zero = true});
}

std::string step_chart(const std::string& name, const std::vector<Point>& points) {
  if (points.size() < 2) return "";
  Thinned few = thinned(points, kBundles);
  Chart chart{.title = name == "lr" ? "Learning rate" : title_of(name) + ", each step", .x_name = "step"};
  if (!few.extremes.empty()) {
    chart.curves.push_back(
        {.name = "range", .colour = 1, .points = std::move(few.extremes), .style = CurveStyle::kFaint});
  }
  chart.curves.push_back({.name = chart.curves.empty() ? "" : "mean", .colour = 1, .points = std::move(few.means)});
  const auto missing =
      std::count_if(points.begin(), points.end(), [](const Point& point) { return !std::isfinite(point.value); });
  if (missing > 0) chart.note = fmt::format("{} of {} values are not finite, and left out.", missing, points.size());
  return to_html(chart);
}

std::string cell(const PassRecord* pass, const std::string& name) {
  const double value = pass == nullptr ? std::nan("") : scalar(pass->scalars, name);
  if (std::isnan(value)) return "<td>-</td>";
  return fmt::format("<td>{}</td>", is_part(name) && value <= 1.0 ? percent_text(value) : number_text(value));
}

std::string table(const RunRecord& run, const std::vector<std::string>& names) {
  struct Row {
    const PassRecord* training = nullptr;
    const PassRecord* evaluation = nullptr;
  };
  std::map<std::int64_t, Row> rows;
  for (const PassRecord& pass : run.epochs) rows[pass.epoch].training = &pass;
  for (const PassRecord& pass : run.evaluations) rows[pass.epoch].evaluation = &pass;
  std::string text =
      "<details><summary>All epochs as a table</summary><div class='card scroll'><table "
      "class='full'><tr><th>epoch</th>";
  const auto out = std::back_inserter(text);
  for (const std::string& name : names) {
    const std::string shown = escaped(name);
    fmt::format_to(out, "<th>{0}, training</th><th>{0}, evaluation</th>", shown);
  }
  text += "<th>seconds</th><th>pictures/s</th></tr>\n";
  std::size_t hidden = rows.size() > kMostRows ? rows.size() - kMostRows : 0;
  const std::size_t all_hidden = hidden;
  for (const auto& [epoch, row] : rows) {
    if (hidden > 0) {
      --hidden;
      continue;
    }
    fmt::format_to(out, "<tr><td>{}</td>", epoch + 1);
    for (const std::string& name : names) text += cell(row.training, name) + cell(row.evaluation, name);
    const bool timed = row.training != nullptr && row.training->seconds > 0.0;
    fmt::format_to(out, "<td>{}</td><td>{}</td></tr>\n", timed ? seconds_text(row.training->seconds) : "-",
                   timed ? number_text(static_cast<double>(row.training->samples) / row.training->seconds) : "-");
  }
  text += "</table></div>";
  if (all_hidden > 0) text += fmt::format("<p class='note'>The last {} epochs.</p>", kMostRows);
  return text + "</details>\n";
}

}  // namespace

std::string curves_section(const RunRecord& run) {
  std::vector<std::string> names = names_of(run);
  const std::size_t left_out = names.size() > kMostNames ? names.size() - kMostNames : 0;
  names.resize(names.size() - left_out);
  std::string charts;
  for (const std::string& name : names) charts += epoch_chart(run, name);
  charts += speed_chart(run);
  std::size_t steps = 0;
  for (const auto& [name, points] : run.steps) {
    if (++steps <= kMostNames) charts += step_chart(name, points);
  }
  if (charts.empty()) return "";
  std::string text = "<section><h2>Curves</h2><div class='grid'>" + charts + "</div>\n";
  if (left_out > 0 || steps > kMostNames) {
    text += fmt::format("<p class='note'>Of each kind the first {} curves are drawn.</p>", kMostNames);
  }
  if (!run.epochs.empty() || !run.evaluations.empty()) {
    names.resize(std::min<std::size_t>(names.size(), 8));
    text += table(run, names);
  }
  return text + "</section>\n";
}

}  // namespace lockstep::report
