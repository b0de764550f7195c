// Two ways of doing the same, which take turns in one process: how long each takes, by turn.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "measure.h"

namespace lockstep::bench {

// Seconds, a value for each turn.
struct Turns {
  std::vector<double> with, without;
};

// Which of the two comes first changes from turn to turn.
template <typename With, typename Without>
Turns take_turns(int turns, With with, Without without) {
  Turns taken;
  for (int turn = 0; turn < turns; ++turn) {
    if (turn % 2 == 0) taken.with.push_back(with());
    taken.without.push_back(without());
    if (turn % 2 != 0) taken.with.push_back(with());
  }
  return taken;
}

inline void write_turns(const std::string& path, const Turns& turns) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) die(path, "cannot be written");
  const auto write = [&](const char* name, const std::vector<double>& seconds, const char* end) {
    std::fprintf(file, "\"%s\": [", name);
    for (std::size_t i = 0; i < seconds.size(); ++i) std::fprintf(file, "%s%.10f", i > 0 ? ", " : "", seconds[i]);
    std::fprintf(file, "]%s", end);
  };
  std::fputs("{", file);
  write("with", turns.with, ", ");
  write("without", turns.without, "}\n");
  std::fclose(file);
}

}  // namespace lockstep::bench
