// The command line of the trainer.
#pragma once

#include <cstdint>
#include <string>

struct Options {
  std::string data = "/usr/share/datasets/fashion-mnist";
  int epochs = 10;
  std::int64_t batch_size = 64;
  double lr = 0.01;
  double momentum = 0.5;
  std::uint64_t seed = 1234;
  std::string checkpoint_dir;
  bool resume = false;
  std::string log;
};

// Exits for --help and wrong arguments.
Options parse_options(int argc, char** argv);
