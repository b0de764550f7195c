// How errors name the ranks of a group: by their numbers in the world, which mean the same in every group.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::comm {

class Roster {
 public:
  // `world_ranks`: by group rank. Empty: the numbers are the same.
  explicit Roster(std::vector<int> world_ranks = {}) : world_ranks_(std::move(world_ranks)) {
    std::vector<int> own(world_ranks_.size());
    std::iota(own.begin(), own.end(), 0);
    if (own == world_ranks_) world_ranks_.clear();
  }

  bool has(int rank) const {
    return world_ranks_.empty() || (rank >= 0 && rank < static_cast<int>(world_ranks_.size()));
  }
  int number(int rank) const { return world_ranks_.empty() ? rank : world_ranks_[rank]; }
  // Follows numbers in errors, if group ranks and global ranks differ.
  const char* suffix() const { return world_ranks_.empty() ? "" : " of the world"; }
  // "rank 3", or "rank 3 of the world".
  std::string name(int rank) const { return fmt::format("rank {}{}", number(rank), suffix()); }
  // "rank(s) 1 (stopped by a signal), 2 of the world": ranks that are in words already.
  std::string list(const std::vector<std::string>& ranks) const {
    return fmt::format("rank(s) {}{}", fmt::join(ranks, ", "), suffix());
  }
  // "rank(s) 1, 2 of the world".
  std::string list(const std::vector<int>& ranks) const {
    std::vector<std::string> texts;
    texts.reserve(ranks.size());
    for (const int rank : ranks) texts.push_back(std::to_string(number(rank)));
    return list(texts);
  }

  // The roster of some of the group's ranks.
  Roster part(const std::vector<int>& ranks) const {
    std::vector<int> numbers;
    numbers.reserve(ranks.size());
    for (const int rank : ranks) numbers.push_back(number(rank));
    return Roster(std::move(numbers));
  }

 private:
  std::vector<int> world_ranks_;
};

// What errors call a group and its ranks.
struct GroupNames {
  const std::string& group;
  const Roster& ranks;
};

}  // namespace lockstep::comm
