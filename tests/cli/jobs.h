// Shared by the tests that start `lockstep run`.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "support/read_file.h"

namespace lockstep::test {

// The command line that runs a shell script as several workers.
inline std::vector<std::string> job(int workers, const std::string& script,
                                    const std::vector<std::string>& options = {}) {
  std::vector<std::string> words{LOCKSTEP_PROGRAM, "run", "--nproc-per-node", std::to_string(workers)};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"sh", "-c", script});
  return words;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Expects that a rank has written the numbers from 1 to `last`, one a line, and then `rest`; `out` is what the launcher
// has shown of several workers. On a busy machine the two parts of a line may come so long after one another that they
// are shown as two lines.
inline void expect_numbers(const std::string& out, int rank, int last, const std::string& rest = {}) {
  const std::string prefix = "[rank " + std::to_string(rank) + "]: ";
  std::string shown, expected;
  int lines = 0;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(prefix)) continue;
    shown += line.substr(prefix.size());
    ++lines;
  }
  for (int number = 1; number <= last; ++number) expected += std::to_string(number);
  EXPECT_TRUE(shown == expected + rest) << "rank " << rank << " wrote " << lines << " lines";
  EXPECT_GE(lines, last) << "rank " << rank;
}

}  // namespace lockstep::test
