// The program behind `lockstep new`.
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/printable.h"
#include "base/standard_descriptors.h"
#include "cli/new_project/new_project.h"
#include "options/command.h"

namespace {

namespace fs = std::filesystem;

int make_project(const std::string& name) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const lockstep::Status status =
      lockstep::cli::new_project(lockstep::cli::project_templates(program.parent_path()), name);
  if (!status.ok()) return lockstep::options::fail({status.code(), lockstep::printable(status.message())});
  // The path may lead through a folder that is missing.
  const std::string place = fs::exists(name, ignored) ? name : fs::weakly_canonical(name, ignored).native();
  std::printf(
      "%s is there. Next:\n  cd %s\n  cmake -B build -G Ninja && cmake --build build\n"
      "  ./build/train --config config.yaml\n",
      place.c_str(), place.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  lockstep::options::Command app{.name = "lockstep", .help = "Projects."};
  std::string name;
  const auto& command =
      app.add("new",
              "Makes a project in the folder NAME that builds and trains at once: CMake, config.yaml, "
              "model, data, trainer, scripts for one machine, Slurm and Kubernetes, tests",
              [&] { return make_project(name); });
  command.key("NAME", name, "The folder, which must not be there, or be empty").word();
  return lockstep::options::run(app, {argv + 1, argv + argc});
}
