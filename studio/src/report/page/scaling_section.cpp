// The scaling table and its plot.
#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "report/page/chart.h"
#include "report/page/page.h"

namespace lockstep::report {
namespace {

std::string spread_text(const Spread& spread, std::string (*text)(double)) {
  std::string shown = text(spread.median);
  if (spread.low < spread.high) {
    shown += fmt::format(" <span class='soft'>({} to {})</span>", text(spread.low), text(spread.high));
  }
  return shown;
}

// Not minutes: these are compared.
std::string two_digits(double seconds) {
  return std::isfinite(seconds) ? fmt::format("{:.2f}", seconds) : "-";
}

std::string speed_up_chart(const ScalingTable& table) {
  if (table.rows.size() < 2) return "";
  Curve ideal{.name = "ideal", .colour = 4, .style = CurveStyle::kDashed};
  Curve measured{.name = "measured", .colour = 1, .dots = true};
  for (const ScalingRow& row : table.rows) {
    ideal.points.push_back({static_cast<double>(row.processes), static_cast<double>(row.processes)});
    measured.points.push_back({static_cast<double>(row.processes), row.speed_up});
  }
  return to_html({.title = "Speed-up", .x_name = "processes", .curves = {ideal, measured}, .from_zero = true});
}

}  // namespace

std::string scaling_section(const ScalingTable& table) {
  if (table.rows.empty()) return "";
  const bool weak = table.kind == ScalingKind::kWeak;
  std::string text = fmt::format(
      "<section><h2>Scaling</h2><div class='grid'><div class='card double scroll'><h3>{} scaling: {}</h3><table "
      "class='full'><tr>"
      "<th>processes</th><th>seconds per epoch</th><th>speed-up</th><th>efficiency</th><th>device "
      "use</th><th>accuracy</th>"
      "<th>runs</th></tr>\n",
      weak ? "Weak" : "Strong", weak ? "each process has the same work" : "all processes share the same work");
  for (const ScalingRow& row : table.rows) {
    fmt::format_to(std::back_inserter(text),
                   "<tr><td>{}</td><td>{}</td><td>{:.2f}x</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                   row.processes, spread_text(row.seconds, two_digits), row.speed_up, percent_text(row.efficiency),
                   spread_text(row.device_use, percent_text), spread_text(row.accuracy, percent_text), row.runs);
  }
  return text + "</table><p class='note'>Median of the runs, with the smallest and the largest.</p></div>" +
         speed_up_chart(table) + "</div></section>\n";
}

}  // namespace lockstep::report
