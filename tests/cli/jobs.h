// Shared by the tests that start `lockstep run`.
#pragma once

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

}  // namespace lockstep::test
