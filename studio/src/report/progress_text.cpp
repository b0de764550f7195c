#include "report/progress_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/printable.h"

namespace lockstep::report {
namespace {

constexpr int kLongestBar = 30;
constexpr int kShortestBar = 6;
constexpr int kNarrow = 40;  // columns: a narrower line has text alone, which is worth more than a bar

std::string head(const PassState& pass) {
  const std::string of = pass.epochs > 0 ? fmt::format("/{}", pass.epochs) : "";
  return fmt::format("{} {}{}", printable(pass.name), pass.epoch + 1, of);
}

std::string count(const PassState& pass) {
  return pass.steps > 0 ? fmt::format("{}/{}", pass.done, pass.steps) : fmt::format("step {}", pass.done);
}

std::string loss(const PassState& pass) {
  if (pass.loss_samples == 0) return "";
  return fmt::format("loss {:.4g}", pass.weighted_loss / static_cast<double>(pass.loss_samples));
}

std::string rate(const PassState& pass) {
  if (pass.samples == 0 || pass.seconds <= 0.0) return "";
  const double rate = static_cast<double>(pass.samples) / pass.seconds;
  return fmt::format("{:.{}f} pictures/s", rate, rate < 10 ? 1 : 0);
}

std::string left(const PassState& pass) {
  const auto seconds = seconds_left(pass);
  return seconds ? fmt::format("{} left", duration_text(*seconds)) : "";
}

std::string run_left(const PassState& pass) {
  const auto seconds = run_seconds_left(pass);
  return seconds ? fmt::format("run {} left", duration_text(*seconds)) : "";
}

std::string parts(const PassState& pass, std::string_view separator) {
  const double total = pass.times.total();
  if (total <= 0.0) return "";
  std::string text;
  const auto add = [&](std::string_view name, double seconds) {
    if (seconds > 0.0) {
      text += fmt::format("{}{} {:.0f}%", text.empty() ? "" : separator, name, 100.0 * seconds / total);
    }
  };
  add("input", pass.times.input);
  add("compute", pass.times.compute);
  add("communication", pass.times.communication);
  add("other", pass.times.other);
  return text;
}

std::string joined(const std::vector<std::string>& pieces, std::string_view separator) {
  std::string line;
  for (const std::string& piece : pieces) {
    if (!piece.empty()) line += fmt::format("{}{}", line.empty() ? "" : separator, piece);
  }
  return line;
}

int characters(std::string_view utf8) {
  return static_cast<int>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string cut(std::string line, int columns) {
  while (characters(line) > columns) {
    while (!line.empty() && (line.back() & 0xc0) == 0x80) line.pop_back();
    if (!line.empty()) line.pop_back();
  }
  return line;
}

// Empty when there is no room, or the number of steps is not known.
std::string bar(const PassState& pass, int width, bool unicode) {
  const int cells = std::min(width, kLongestBar);
  if (pass.steps <= 0 || cells < kShortestBar) return "";
  const double part = static_cast<double>(pass.done) / static_cast<double>(pass.steps);
  const int full = static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * cells));
  std::string text;
  for (int i = 0; i < cells; ++i) text += i < full ? (unicode ? "\u2588" : "#") : (unicode ? "\u2591" : ".");
  return text;
}

}  // namespace

std::string duration_text(double seconds) {
  constexpr double kMost = 1e8;  // three years
  if (!(seconds >= 0.0 && seconds < kMost)) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::optional<double> seconds_left(const PassState& pass) {
  const std::int64_t timed = pass.done - pass.done_before;
  if (pass.steps <= 0 || timed <= 0) return std::nullopt;
  const auto to_do = static_cast<double>(std::max<std::int64_t>(0, pass.steps - pass.done));
  return pass.seconds / static_cast<double>(timed) * to_do;
}

std::optional<double> run_seconds_left(const PassState& pass) {
  const auto now = seconds_left(pass);
  if (!now || pass.epochs <= 0) return std::nullopt;
  // The epochs to come have all steps, also where this one was resumed.
  const double unseen =
      pass.seconds / static_cast<double>(pass.done - pass.done_before) * static_cast<double>(pass.done_before);
  const double each = std::max(pass.epoch_seconds, pass.seconds_before + unseen + pass.seconds + *now);
  return *now + each * static_cast<double>(std::max<std::int64_t>(0, pass.epochs - pass.epoch - 1));
}

std::string bar_line(const PassState& pass, int columns, bool unicode) {
  // By importance, because the last ones are left out first.
  std::vector<std::string> pieces = {count(pass), loss(pass), left(pass), rate(pass), run_left(pass), parts(pass, " ")};
  const int for_bar = pass.steps > 0 && columns >= kNarrow ? kShortestBar + 2 : 0;
  std::string line;
  while (true) {
    line = head(pass) + "  " + joined(pieces, "  ");
    if (pieces.size() <= 1 || characters(line) + for_bar <= columns) break;
    pieces.pop_back();
  }
  const std::string drawn = bar(pass, columns - characters(line) - 2, unicode);
  if (!drawn.empty()) line = head(pass) + "  " + drawn + "  " + joined(pieces, "  ");
  return cut(std::move(line), columns);
}

std::string plain_line(const PassState& pass) {
  const std::string percent =
      pass.steps > 0
          ? fmt::format(" ({:.0f}%)", 100.0 * static_cast<double>(pass.done) / static_cast<double>(pass.steps))
          : "";
  return fmt::format(
      "{}: {}", head(pass),
      joined({count(pass) + percent, loss(pass), rate(pass), left(pass), run_left(pass), parts(pass, " ")}, ", "));
}

std::string end_line(const PassState& pass, const std::string& results) {
  return fmt::format(
      "{}: {}", head(pass),
      joined({results, loss(pass), rate(pass), fmt::format("{:.1f} s", pass.seconds), parts(pass, " ")}, ", "));
}

}  // namespace lockstep::report
