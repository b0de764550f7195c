#include "base/word_distance.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace lockstep {
namespace {

std::string plain(std::string_view word) {
  std::string result(word.substr(0, kComparedLetters));
  for (char& letter : result) {
    letter = letter == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return result;
}

}  // namespace

// Optimal string alignment, three rows at a time.
std::size_t word_distance(std::string_view one, std::string_view other) {
  const std::string a = plain(one);
  const std::string b = plain(other);
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = std::max<std::size_t>(1, std::min<std::size_t>(word.size(), kComparedLetters) / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = word_distance(word, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace lockstep
