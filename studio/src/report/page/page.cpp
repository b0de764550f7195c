#include "report/page/page.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>

#include "report/progress_text.h"

namespace lockstep::report {

std::string number_text(double value) {
  if (std::isnan(value)) return "not a number";
  if (std::isinf(value)) return value > 0 ? "infinite" : "-infinite";
  const double size = std::abs(value);
  if (size >= 1e9 || (size > 0.0 && size < 1e-3)) return fmt::format("{:.3g}", value);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

std::string percent_text(double part) {
  return std::isfinite(part) ? fmt::format("{:.1f} %", 100.0 * part) : "-";
}

std::string seconds_text(double value) {
  if (!std::isfinite(value)) return "-";
  if (value >= 120.0) return duration_text(value);
  return fmt::format("{:.{}f} s", value, value < 10.0 ? 2 : 1);
}

std::string utc_text(double unix_seconds) {
  // Until the year 9999.
  if (!(unix_seconds > 0.0 && unix_seconds < 253402300799.0)) return "at an unknown time";
  const auto whole = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&whole, &parts) == nullptr) return "at an unknown time";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", &parts)};
}

}  // namespace lockstep::report
