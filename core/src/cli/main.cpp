// The program `lockstep`: runs jobs, or becomes another program for the commands of other components and those that
// need large libraries: loading these would delay `run`.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/printable.h"
#include "base/standard_descriptors.h"
#include "cli/run_program.h"
#include "launch/standby/hook.h"
#include "launch/standby/program_note.h"
#include "lockstep/base/environment.h"
#include "options/command.h"

// `lockstep train` becomes another program, which is then the one to be loaded ahead.
const char lockstep_waits_on_standby_itself = 1;

namespace {

namespace fs = std::filesystem;
using lockstep::Environment;
using lockstep::ErrorCode;
using lockstep::printable;
using lockstep::Status;

// A command that is a program of its own, beside this one.
struct OtherProgram {
  const char* command;
  const char* program;
  const char* component;
  bool torch;
};

constexpr std::array<OtherProgram, 11> kOtherPrograms{{
    {"checkpoint", "lockstep-checkpoint", "core", true},
    {"pack", "lockstep-pictures", "vision", false},
    {"data", "lockstep-pictures", "vision", false},
    {"doctor", "lockstep-doctor", "studio", false},
    {"bench", "lockstep-doctor", "studio", false},
    {"report", "lockstep-report", "studio", false},
    {"scaling", "lockstep-report", "studio", false},
    {"new", "lockstep-new", "studio", false},
    {"train", "lockstep-train", "studio", true},
    {"evaluate", "lockstep-train", "studio", true},
    {"predict", "lockstep-train", "studio", true},
}};
// `lockstep checkpoint export`, which makes the model.
constexpr OtherProgram kExport{"checkpoint", "lockstep-train", "studio", true};
// `lockstep run` with a configuration file: what it does otherwise, and the file's section.
constexpr OtherProgram kRunWithFile{"run", "lockstep-config", "studio", false};

fs::path program_folder() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

int become_program(const OtherProgram& other, char** argv) {
  const fs::path program = program_folder() / other.program;
  ::execv(program.c_str(), argv);
  const int error = errno;
  const std::string hint = std::string(". It is part of Lockstep's component ") + other.component +
                           " (Debian package lockstep-" + other.component + ")";
  std::fprintf(stderr, "lockstep: cannot start %s, which must be in the folder of this program: %s%s\n",
               program.c_str(), std::strerror(error), error == ENOENT ? hint.c_str() : "");
  return error == ENOENT ? 127 : 126;
}

// The options of `lockstep run`. A file of --config is read by another program.
class LaunchTable : public lockstep::options::Table {
 public:
  explicit LaunchTable(char** argv) : Table(/*reads_file=*/true), argv_(argv) {}

 private:
  Status read_file(const fs::path&, lockstep::options::Reading&) override {
    std::exit(become_program(kRunWithFile, argv_));
  }

  char** argv_;
};

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

// Lets a program that this process becomes find LibTorch: in the folder that LOCKSTEP_TORCH_DIR names, of the wheel
// `torch`, if it is set; else where it was when Lockstep was built, or in LD_LIBRARY_PATH. The launcher loads none of
// it. `command` is for the message. Errors: kNotFound; kInvalidArgument when the folder has another release, which
// would crash.
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

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command != "train" || !lockstep::launch::has_standby_hook(program_folder() / "lockstep-train")) {
    lockstep::launch::wait_on_standby();
  }
  lockstep::fill_standard_descriptors();
  const auto other = std::find_if(kOtherPrograms.begin(), kOtherPrograms.end(),
                                  [&](const OtherProgram& program) { return command == program.command; });
  if (other != kOtherPrograms.end()) {
    const Status found = other->torch ? find_torch_for(argv[1]) : Status();
    if (!found.ok()) return lockstep::options::fail(found);
    const bool is_export = command == "checkpoint" && argc > 2 && std::string_view(argv[2]) == "export";
    return become_program(is_export ? kExport : *other, argv);
  }
  return lockstep::cli::run_program(argc, argv, std::make_shared<LaunchTable>(argv));
}
