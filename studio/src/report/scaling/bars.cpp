// The plot of the table for terminals.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "lockstep/report/scaling.h"

namespace lockstep::report {
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
