// The commands for pictures and their options. Exit codes: 0; 1 for findings or a failure; 2 for wrong usage.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/picture_tools/pack.h"
#include "options/command.h"
#include "picture_tools/check_folder.h"
#include "picture_tools/preview.h"

namespace lockstep::cli {

struct PackArguments {
  std::string folder;
  std::string file;
  data::PackOptions options;
};

struct PreviewArguments {
  std::string folder;
  std::string out = "preview.html";
  std::string transforms = "reference";
  int size = 224;
  std::int64_t seed = 0;
  data::PreviewOptions options;
};

struct CheckArguments {
  std::string path;
  data::CheckOptions options;
};

// Add the commands `pack`, `preview` and `check`. The arguments must outlive them.
void add_pack(options::Command& app, PackArguments& arguments);
void add_preview(options::Command& data, PreviewArguments& arguments);
void add_check(options::Command& data, CheckArguments& arguments);

}  // namespace lockstep::cli
