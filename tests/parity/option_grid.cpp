#include "parity/option_grid.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace lockstep::test {
namespace {

struct Setting {
  std::size_t factor;
  std::size_t level;
};
using Settings = std::vector<Setting>;
constexpr std::size_t kOpen = SIZE_MAX;

class Grid {
 public:
  Grid(const std::vector<Factor>& factors, const std::vector<Exclusion>& exclusions, std::size_t strength)
      : factors_(factors), exclusions_(exclusions) {
    add_tuples({}, 0, strength);
  }

  std::vector<Combination> combinations() {
    std::vector<Combination> result;
    while (!uncovered_.empty()) {
      levels_.assign(factors_.size(), kOpen);
      for (const auto& [factor, level] : uncovered_.front()) levels_[factor] = level;
      Combination one;
      for (std::size_t factor = 0; factor < factors_.size(); ++factor) {
        if (levels_[factor] == kOpen) choose_level(factor);
        one[factors_[factor].name] = factors_[factor].levels[levels_[factor]];
      }
      result.push_back(std::move(one));
      std::erase_if(uncovered_, [this](const Settings& tuple) { return is_covered(tuple); });
    }
    return result;
  }

 private:
  void add_tuples(const Settings& some, std::size_t first_factor, std::size_t missing) {
    if (missing == 0) return uncovered_.push_back(some);
    for (std::size_t factor = first_factor; factor < factors_.size(); ++factor) {
      for (std::size_t level = 0; level < factors_[factor].levels.size(); ++level) {
        if (!fit(some, {factor, level})) continue;
        Settings more = some;
        more.push_back({factor, level});
        add_tuples(more, factor + 1, missing - 1);
      }
    }
  }

  bool is(const Setting& setting, const std::string& factor, const std::vector<std::string>& levels) const {
    const Factor& own = factors_[setting.factor];
    return own.name == factor && std::find(levels.begin(), levels.end(), own.levels[setting.level]) != levels.end();
  }

  bool fit(const Settings& some, const Setting& one) const {
    for (const Exclusion& no : exclusions_) {
      for (const Setting& other : some) {
        if (is(one, no.factor, no.levels) && is(other, no.other_factor, no.other_levels)) return false;
        if (is(other, no.factor, no.levels) && is(one, no.other_factor, no.other_levels)) return false;
      }
    }
    return true;
  }

  bool is_covered(const Settings& tuple) const {
    return std::all_of(tuple.begin(), tuple.end(),
                       [this](const Setting& one) { return levels_[one.factor] == one.level; });
  }

  // The level of `factor` in the tuple; kOpen where the tuple has no level of it, or where another setting of the tuple
  // is not chosen.
  std::size_t level_that_covers(const Settings& tuple, std::size_t factor) const {
    std::size_t found = kOpen;
    for (const Setting& one : tuple) {
      if (one.factor == factor) {
        found = one.level;
      } else if (levels_[one.factor] != one.level) {
        return kOpen;
      }
    }
    return found;
  }

  // The level that covers the most; the first of these.
  void choose_level(std::size_t factor) {
    Settings chosen;
    for (std::size_t other = 0; other < levels_.size(); ++other) {
      if (levels_[other] != kOpen) chosen.push_back({other, levels_[other]});
    }
    std::vector<std::ptrdiff_t> covered(factors_[factor].levels.size());
    for (const Settings& tuple : uncovered_) {
      const std::size_t level = level_that_covers(tuple, factor);
      if (level != kOpen) ++covered[level];
    }
    std::size_t best = kOpen;
    std::ptrdiff_t most = -1;
    for (std::size_t level = 0; level < covered.size(); ++level) {
      if (covered[level] <= most || !fit(chosen, {factor, level})) continue;
      best = level;
      most = covered[level];
    }
    levels_[factor] = best;
  }

  const std::vector<Factor>& factors_;
  const std::vector<Exclusion>& exclusions_;
  std::vector<Settings> uncovered_;
  std::vector<std::size_t> levels_;  // of the combination that is being made, by factor
};

}  // namespace

std::vector<Combination> combine(const std::vector<Factor>& factors, const std::vector<Exclusion>& exclusions,
                                 std::size_t strength) {
  return Grid(factors, exclusions, strength).combinations();
}

}  // namespace lockstep::test
