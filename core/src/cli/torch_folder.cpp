#include "cli/torch_folder.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/printable.h"
#include "lockstep/base/environment.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "LOCKSTEP_TORCH_DIR";
constexpr std::string_view kBuiltWithFolder = LOCKSTEP_TORCH_FOLDER;
constexpr std::string_view kBuiltWithVersion = LOCKSTEP_TORCH_VERSION;

bool has_library(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "libtorch_cpu.so", ignored);
}

bool is_on_library_path(const std::string& path) {
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && has_library(folder)) return true;
  }
  return false;
}

// "2.15.0" of the line "__version__ = '2.15.0+cpu'". Empty: not told.
std::string version_of(const fs::path& torch) {
  std::ifstream file(torch / "version.py");
  constexpr std::string_view kKey = "__version__ = '";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kKey)) return line.substr(kKey.size(), line.find_first_of("+'", kKey.size()) - kKey.size());
  }
  return "";
}

std::string how_to_name_it() {
  return fmt::format("pip install torch=={}, then export {}=$(python3 -c 'import torch; print(torch.__path__[0])')",
                     kBuiltWithVersion, kVariable);
}

}  // namespace

Status find_torch_for(const std::string& command) {
  if (kBuiltWithVersion.empty()) return {};  // a build without LibTorch, so without the program
  const Environment environment = Environment::of_process();
  const std::string library_path = environment.get("LD_LIBRARY_PATH").value_or("");
  const auto named = environment.get(kVariable);
  if (!named) {
    if (has_library(fs::path(kBuiltWithFolder) / "lib") || is_on_library_path(library_path)) return {};
    return Status(ErrorCode::kNotFound,
                  fmt::format("{} needs LibTorch {}, which is not in {}, where it was when Lockstep "
                              "was built: {}",
                              command, kBuiltWithVersion, kBuiltWithFolder, how_to_name_it()));
  }
  const fs::path torch = *named;
  if (!has_library(torch / "lib")) {
    return Status(
        ErrorCode::kNotFound,
        fmt::format("{}: expected the folder of the Python package torch, with lib/libtorch_cpu.so, found none "
                    "in '{}': {}",
                    kVariable, printable(*named), how_to_name_it()));
  }
  const std::string found = version_of(torch);
  if (!found.empty() && found != kBuiltWithVersion) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: Lockstep was built with LibTorch {}, whose symbols differ from those of {} in '{}': {}",
                    kVariable, kBuiltWithVersion, printable(found), printable(*named), how_to_name_it()));
  }
  const std::string path = fs::absolute(torch / "lib").native() + (library_path.empty() ? "" : ":" + library_path);
  ::setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  return {};
}

}  // namespace lockstep::cli
