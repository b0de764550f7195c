#include "config/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/printable.h"
#include "base/word_distance.h"

namespace lockstep::config {
namespace {

constexpr std::size_t kMostShown = 64;  // letters
constexpr std::size_t kMostListed = 12;

}  // namespace

std::string shown(std::string_view word) {
  const bool cut = word.size() > kMostShown;
  return fmt::format("'{}{}'", printable(word.substr(0, kMostShown)), cut ? "..." : "");
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  if (const std::string best = nearest_word(word, known); !best.empty()) {
    return fmt::format("; the nearest known one is '{}'", best);
  }
  if (known.empty()) return "";
  const std::size_t count = std::min(kMostListed, known.size());
  return fmt::format("; known are {}{}",
                     fmt::join(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(count), ", "),
                     count < known.size() ? ", ..." : "");
}

}  // namespace lockstep::config
