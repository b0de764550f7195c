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

}  // namespace lockstep::doctor
