// Shared by the tests that start `lockstep run`.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "support/process.h"
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

// Runs this script as several workers to its end.
inline Finished run_job(int workers, const std::string& script, const std::vector<std::string>& options = {}) {
  return run_program(job(workers, script, options));
}

using Lines = std::vector<std::string>;

// The lines of all ranks, in an order that does not depend on who was first.
inline Lines sorted_lines(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The text of one rank's lines, without their ends; `out` is what the launcher has shown of several workers. On a busy
// machine the two parts of a line may come so long after one another that they are shown as two lines.
inline std::string shown_by(const std::string& out, int rank) {
  const std::string prefix = "[rank " + std::to_string(rank) + "]: ";
  std::string shown;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(prefix)) shown += line.substr(prefix.size());
  }
  return shown;
}

// What `seq 1 LAST` writes, without the ends of lines.
inline std::string numbers(int last) {
  std::string text;
  for (int number = 1; number <= last; ++number) text += std::to_string(number);
  return text;
}

}  // namespace lockstep::test
