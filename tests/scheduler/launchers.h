// Shared by the tests with other launchers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "support/process.h"

namespace lockstep::test {

using Words = std::vector<std::string>;

// The output of join_world, in the order of the ranks, if all ranks are on this machine.
inline std::string world_lines(int ranks, const std::string& source) {
  std::ostringstream lines;
  for (int rank = 0; rank < ranks; ++rank) {
    lines << "rank " << rank << " of " << ranks << ", local " << rank << " of " << ranks << ", node 0 of 1, by "
          << source << ", sum " << ranks * (ranks + 1) / 2 << '\n';
  }
  return lines.str();
}

inline std::string sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line + '\n');
  std::sort(lines.begin(), lines.end());
  std::string result;
  for (const std::string& line : lines) result += line;
  return result;
}

inline void expect_world(const Finished& end, int ranks, const std::string& source) {
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_EQ(sorted_lines(end.out), world_lines(ranks, source)) << end.err;
}

}  // namespace lockstep::test
