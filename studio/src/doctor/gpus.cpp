// The checks of what training needs besides: GPUs, LibTorch.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <string>
#include <vector>

#include "doctor/checks.h"
#include "doctor/text_files.h"
#include "site/devices.h"
#include "site/processes.h"

namespace lockstep::doctor {
namespace {

// NVIDIA's display controllers on the bus, whether there is a driver or not.
int nvidia_devices(const std::string& root) {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/sys/bus/pci/devices", error)) {
    const bool nvidia = first_line(entry.path() / "vendor") == "0x10de";
    if (nvidia && first_line(entry.path() / "class").starts_with("0x03")) ++count;
  }
  return count;
}

Finding check_gpu(const site::Gpu& gpu) {
  const std::string topic = fmt::format("gpu {}", gpu.index);
  if (!gpu.health.ok()) {
    return problem(topic, gpu.health.message(),
                   "look at `dmesg | grep NVRM`; a reset or a restart of the machine helps");
  }
  std::vector<std::string> users;
  users.reserve(gpu.users.size());
  for (const site::GpuUser& user : gpu.users) {
    users.push_back(fmt::format("{}, {} MiB", site::describe_process(user.pid), user.bytes >> 20U));
  }
  const std::string text =
      fmt::format("{}{}{}", site::describe(gpu), users.empty() ? "" : "; used by ", fmt::join(users, "; "));
  if (double(gpu.free_bytes) < 0.1 * double(gpu.total_bytes)) {
    return warning(topic, text, "choose others: lockstep run --devices auto:N takes those with the most free memory");
  }
  return ok(topic, text);
}

}  // namespace

Findings check_gpus(const std::string& root) {
  const int devices = nvidia_devices(root);
  auto inventory = site::list_gpus();
  if (!inventory.ok()) {
    if (devices == 0) return {ok("gpus", "no NVIDIA GPU: training runs on the CPU")};
    return {
        problem("gpus", fmt::format("{} NVIDIA GPUs are there, but {}", devices, inventory.status().message()),
                "install the driver (Debian: nvidia-driver), or give the container its devices (docker --gpus all)")};
  }
  Findings findings{ok("driver", fmt::format("NVIDIA {}, {} GPUs", inventory->driver, inventory->gpus.size()))};
  for (const site::Gpu& gpu : inventory->gpus) findings.push_back(check_gpu(gpu));
  return findings;
}

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
