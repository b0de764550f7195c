// The commands for pictures and their options. Exit codes: 0; 1 for findings or a failure; 2 for wrong usage.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): as the library spells it
class App;
}

namespace lockstep::cli {

struct PackArguments {
  std::string folder;
  std::string file;
  int resize = 0;
  int quality = 90;
  int threads = 0;
  bool skip_corrupt = false;
};

struct PreviewArguments {
  std::string folder;
  std::string out = "preview.html";
  std::string transforms = "reference";
  int size = 224;
  int samples = 32;
  int cell = 160;
  int epochs = 1;
  std::uint64_t seed = 0;
};

struct CheckArguments {
  std::string path;
  int least_side = 32;
  int threads = 0;
};

void add_pack_options(CLI::App& command, PackArguments& arguments);
void add_preview_options(CLI::App& command, PreviewArguments& arguments);
void add_check_options(CLI::App& command, CheckArguments& arguments);

int run_pack(const PackArguments& arguments);
int run_preview(const PreviewArguments& arguments);
int run_check(const CheckArguments& arguments);

}  // namespace lockstep::cli
