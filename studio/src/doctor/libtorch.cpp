#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "doctor/checks.h"
#include "doctor/text_files.h"

namespace lockstep::doctor {
namespace {

// "2.15.0" from the header that says so, without loading a library.
std::string version_in(const std::string& folder) {
  std::ifstream file(folder + "/include/torch/headeronly/version.h");
  std::string version;
  for (std::string line; std::getline(file, line);) {
    for (const char* part :
         {"#define TORCH_VERSION_MAJOR ", "#define TORCH_VERSION_MINOR ", "#define TORCH_VERSION_PATCH "}) {
      if (line.starts_with(part)) version += (version.empty() ? "" : ".") + line.substr(std::string(part).size());
    }
  }
  return version;
}

}  // namespace

Findings check_libtorch(const std::string& folder, const std::string& version) {
  if (folder.empty()) return {ok("libtorch", "this build is without LibTorch: launcher and engine alone")};
  const std::string advice = fmt::format(
      "pip install torch=={}, and name its folder in LOCKSTEP_TORCH_DIR (the folder of torch/__init__.py)", version);
  std::error_code error;
  if (!std::filesystem::exists(folder + "/lib/libtorch_cpu.so", error)) {
    return {warning("libtorch", fmt::format("programs need LibTorch {}, which is not in {}", version, folder), advice)};
  }
  const std::string found = version_in(folder);
  if (found != version) {
    return {problem("libtorch", fmt::format("{} has LibTorch {}; Lockstep was built with {}", folder, found, version),
                    advice)};
  }
  const bool cuda = std::filesystem::exists(folder + "/lib/libtorch_cuda.so", error);
  return {ok("libtorch", fmt::format("{} in {}, {} CUDA", version, folder, cuda ? "with" : "without"))};
}

}  // namespace lockstep::doctor
