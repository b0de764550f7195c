// The program `lockstep`: runs jobs, or becomes another program for the commands of other components and those that
// need large libraries: loading these would delay `run`.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/standard_descriptors.h"
#include "cli/run_program.h"
#include "cli/torch_folder.h"
#include "launch/standby/hook.h"
#include "launch/standby/program_note.h"
#include "options/command.h"

// `lockstep train` becomes another program, which is then the one to be loaded ahead.
const char lockstep_waits_on_standby_itself = 1;

namespace {

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
// `lockstep run` with a configuration file: what it does otherwise, and the file's section.
constexpr OtherProgram kRunWithFile{"run", "lockstep-config", "studio", false};

std::filesystem::path program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
}

int become_program(const OtherProgram& other, char** argv) {
  const std::filesystem::path program = program_folder() / other.program;
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
  lockstep::Status read_file(const std::filesystem::path&, lockstep::options::Reading&) override {
    std::exit(become_program(kRunWithFile, argv_));
  }

  char** argv_;
};

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
    const lockstep::Status found = other->torch ? lockstep::cli::find_torch_for(argv[1]) : lockstep::Status();
    return found.ok() ? become_program(*other, argv) : lockstep::options::fail(found);
  }
  return lockstep::cli::run_program(argc, argv, std::make_shared<LaunchTable>(argv));
}
