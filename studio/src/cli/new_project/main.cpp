// The program behind `lockstep new`.
#include <filesystem>

#include "base/standard_descriptors.h"
#include "cli/new_project/new_project.h"

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return lockstep::cli::new_command({argv + 2, argv + argc}, program.parent_path());
}
