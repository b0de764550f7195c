#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "lockstep/report/scaling.h"
#include "report/page/chart.h"
#include "report/page/page.h"

namespace lockstep::report {
namespace {

constexpr double kLeft = 64, kTop = 52, kPlotWidth = 540, kPlotHeight = 320;

constexpr std::string_view kSvgStyle =
    "text{font:14px system-ui,'DejaVu Sans',sans-serif;fill:#5b6573}.title{font-size:16px;font-weight:600;fill:#1a1f27}"
    ".value{font-size:13px;font-weight:600;fill:#1a1f27}.page{fill:#fff}.grid{stroke:#e1e5ea}.ideal{stroke:#8b5cf6;"
    "stroke-dasharray:5 "
    "5;fill:none;stroke-width:1.5}.measured{stroke:#2563eb;fill:none;stroke-width:2.5}.dot{fill:#2563eb}"
    "@media "
    "(prefers-color-scheme:dark){text{fill:#98a3b1}.title,.value{fill:#e6eaf0}.page{fill:#161b22}.grid{stroke:#28303a}"
    ".ideal{stroke:#b79bff}.measured{stroke:#6ea0ff}.dot{fill:#6ea0ff}}";

// What the row's speed-up would be with these seconds in place of the median.
double speed_up_at(const ScalingRow& row, double seconds) {
  const double value = row.speed_up * row.seconds.median / seconds;
  return std::isfinite(value) ? value : row.speed_up;
}

}  // namespace

std::string to_svg(const ScalingTable& table) {
  double most = 1.0;
  for (const ScalingRow& row : table.rows) {
    most = std::max(most, static_cast<double>(row.processes));
    if (std::isfinite(row.speed_up)) most = std::max(most, row.speed_up);
  }
  const std::vector<double> marks = ticks(0.0, most, 6);
  const double top = marks.back();
  const auto x = [&](double processes) { return kLeft + kPlotWidth * processes / top; };
  const auto y = [&](double speed_up) { return kTop + kPlotHeight * (1.0 - speed_up / top); };
  std::string text = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 640 440' width='640' height='440'><style>{}</style>"
      "<rect class='page' width='640' height='440' rx='10'/><text class='title' x='{}' y='30'>Speed-up, {} "
      "scaling</text>\n",
      kSvgStyle, kLeft, table.kind == ScalingKind::kWeak ? "weak" : "strong");
  const auto out = std::back_inserter(text);
  for (const double mark : marks) {
    fmt::format_to(out,
                   "<path class='grid' d='M{0} {2:.1f}H{1}'/><text x='{3}' y='{4:.1f}' text-anchor='end'>{5}</text>"
                   "<text x='{6:.1f}' y='{7}' text-anchor='middle'>{5}</text>\n",
                   kLeft, kLeft + kPlotWidth, y(mark), kLeft - 10, y(mark) + 5, number_text(mark), x(mark),
                   kTop + kPlotHeight + 22);
  }
  fmt::format_to(out, "<text x='{}' y='{}' text-anchor='middle'>processes</text>\n", kLeft + kPlotWidth / 2,
                 kTop + kPlotHeight + 48);
  fmt::format_to(out, "<path class='ideal' d='M{:.1f} {:.1f}L{:.1f} {:.1f}'/>\n", x(0), y(0), x(top), y(top));
  std::string line;
  std::string dots;
  for (const ScalingRow& row : table.rows) {
    if (!std::isfinite(row.speed_up)) continue;
    const double at = x(row.processes);
    fmt::format_to(std::back_inserter(line), "{}{:.1f} {:.1f}", line.empty() ? 'M' : 'L', at, y(row.speed_up));
    // Beside the point, or below the line where that leaves the plot.
    const bool at_the_edge = at > kLeft + kPlotWidth - 110;
    fmt::format_to(
        std::back_inserter(dots),
        "<path class='measured' d='M{0:.1f} {1:.1f}V{2:.1f}'/><circle class='dot' cx='{0:.1f}' cy='{3:.1f}' r='5'/>"
        "<text class='value' x='{4:.1f}' y='{5:.1f}' text-anchor='{8}'>{6:.2f}x, {7}</text>\n",
        at, y(std::min(top, speed_up_at(row, row.seconds.low))), y(speed_up_at(row, row.seconds.high)), y(row.speed_up),
        at_the_edge ? at : at + 10, y(row.speed_up) + (at_the_edge ? 46 : 22), row.speed_up,
        percent_text(row.efficiency), at_the_edge ? "end" : "start");
  }
  return text + "<path class='measured' d='" + line + "'/>\n" + dots + "</svg>\n";
}

namespace {

constexpr std::size_t kBarColumns = 48;

std::size_t columns_of(double value, double most) {
  const double columns = std::round(value / most * static_cast<double>(kBarColumns));
  return static_cast<std::size_t>(std::clamp(columns, 0.0, static_cast<double>(kBarColumns)));
}

std::string bar_of(const ScalingRow& row, double most) {
  std::string bar(kBarColumns + 1, ' ');
  std::fill_n(bar.begin(), columns_of(row.speed_up, most), '#');
  bar[columns_of(row.processes, most)] = '|';
  return bar;
}

}  // namespace

std::string to_bars(const ScalingTable& table) {
  double most = 1.0;
  for (const ScalingRow& row : table.rows) {
    most = std::max(most, static_cast<double>(row.processes));
    if (std::isfinite(row.speed_up)) most = std::max(most, row.speed_up);
  }
  std::string text = "speed-up, by number of processes (| is the ideal one)\n";
  for (const ScalingRow& row : table.rows) {
    if (!std::isfinite(row.speed_up)) continue;
    fmt::format_to(std::back_inserter(text), "{:>9}  {} {:.2f}x\n", row.processes, bar_of(row, most), row.speed_up);
  }
  return text;
}

}  // namespace lockstep::report
