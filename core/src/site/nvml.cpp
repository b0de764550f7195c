#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <memory>

#include "base/printable.h"
#include "site/devices.h"

namespace lockstep::site {
namespace {

// What is used of NVML's interface, as its header declares it.
using Device = struct NvmlDevice*;
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  std::array<char, 32> bus_id;
};

struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance;
  unsigned compute_instance;
};

class Library {
 public:
  static Result<std::unique_ptr<Library>> open() {
    void* handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* reason = dlerror();
      return Status(ErrorCode::kUnavailable, fmt::format("there is no NVIDIA driver here ({})",
                                                         reason == nullptr ? "libnvidia-ml.so.1" : reason));
    }
    auto library = std::unique_ptr<Library>(new Library(handle));
    LOCKSTEP_RETURN_IF_ERROR(library->load());
    if (const int error = library->init_(); error != kSuccess) {
      return Status(ErrorCode::kUnavailable,
                    fmt::format("the NVIDIA driver does not work: {}", library->text_of(error)));
    }
    library->initialised_ = true;
    return library;
  }
  ~Library() {
    if (initialised_) shutdown_();
    dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  Result<GpuInventory> list() const {
    GpuInventory inventory;
    std::array<char, 96> version{};
    if (driver_version_(version.data(), version.size() - 1) == kSuccess) inventory.driver = printable(version.data());
    unsigned count = 0;
    if (const int error = count_(&count); error != kSuccess) {
      return Status(ErrorCode::kUnavailable,
                    fmt::format("the NVIDIA driver does not list its GPUs: {}", text_of(error)));
    }
    for (unsigned index = 0; index < count; ++index) inventory.gpus.push_back(gpu(index));
    return inventory;
  }

 private:
  explicit Library(void* handle) : handle_(handle) {}

  template <typename Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    return function != nullptr;
  }

  Status load() {
    const bool all = find(init_, "nvmlInit_v2") && find(shutdown_, "nvmlShutdown") &&
                     find(error_string_, "nvmlErrorString") && find(driver_version_, "nvmlSystemGetDriverVersion") &&
                     find(count_, "nvmlDeviceGetCount_v2") && find(handle_by_index_, "nvmlDeviceGetHandleByIndex_v2") &&
                     find(memory_, "nvmlDeviceGetMemoryInfo") && find(name_, "nvmlDeviceGetName") &&
                     find(uuid_, "nvmlDeviceGetUUID") && find(pci_, "nvmlDeviceGetPciInfo_v3") &&
                     find(processes_, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (all) return {};
    return Status(ErrorCode::kUnavailable,
                  "the NVIDIA driver is older than 510: its libnvidia-ml.so.1 lacks functions that are needed");
  }

  std::string text_of(int error) const {
    const char* text = error_string_(error);
    return text == nullptr ? fmt::format("error {}", error) : printable(text);
  }

  Gpu gpu(unsigned index) const {
    Gpu gpu;
    gpu.index = static_cast<int>(index);
    Device device = nullptr;
    const auto failed = [&](std::string_view what, int error) {
      gpu.health = Status(ErrorCode::kUnavailable, fmt::format("GPU {}: {}: {}", index, what, text_of(error)));
      return gpu;
    };
    if (const int error = handle_by_index_(index, &device); error != kSuccess)
      return failed("it does not answer", error);
    std::array<char, 96> text{};
    if (name_(device, text.data(), text.size() - 1) == kSuccess) gpu.name = printable(text.data());
    if (const int error = uuid_(device, text.data(), text.size() - 1); error != kSuccess)
      return failed("no UUID", error);
    gpu.uuid = printable(text.data());
    PciInfo pci{};
    if (pci_(device, &pci) == kSuccess) {
      gpu.pci = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
      gpu.numa_node = numa_node_of(gpu.pci);
    }
    Memory memory{};
    if (const int error = memory_(device, &memory); error != kSuccess) return failed("its memory is not known", error);
    gpu.total_bytes = memory.total;
    gpu.free_bytes = memory.free;
    gpu.users = users_of(device);
    return gpu;
  }

  std::vector<GpuUser> users_of(Device device) const {
    std::vector<ProcessInfo> infos(64);
    auto count = static_cast<unsigned>(infos.size());
    int error = processes_(device, &count, infos.data());
    if (error == kInsufficientSize) {
      infos.resize(std::min<std::size_t>(count + 64U, 65536));
      count = static_cast<unsigned>(infos.size());
      error = processes_(device, &count, infos.data());
    }
    std::vector<GpuUser> users;
    if (error != kSuccess) return users;
    for (unsigned i = 0; i < std::min<std::size_t>(count, infos.size()); ++i) {
      const bool known = infos[i].used_memory != ~0ULL;
      users.push_back({static_cast<int>(infos[i].pid), known ? infos[i].used_memory : 0});
    }
    return users;
  }

  static int numa_node_of(const std::string& pci) {
    std::ifstream file(fmt::format("/sys/bus/pci/devices/{}/numa_node", pci));
    int node = -1;
    return file >> node ? node : -1;
  }

  void* handle_;
  bool initialised_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  const char* (*error_string_)(int) = nullptr;
  int (*driver_version_)(char*, unsigned) = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_by_index_)(unsigned, Device*) = nullptr;
  int (*memory_)(Device, Memory*) = nullptr;
  int (*name_)(Device, char*, unsigned) = nullptr;
  int (*uuid_)(Device, char*, unsigned) = nullptr;
  int (*pci_)(Device, PciInfo*) = nullptr;
  int (*processes_)(Device, unsigned*, ProcessInfo*) = nullptr;
};

double gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1ULL << 30U);
}

}  // namespace

Result<GpuInventory> list_gpus() {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto library, Library::open());
  return library->list();
}

std::string describe(const Gpu& gpu) {
  if (!gpu.health.ok()) return gpu.health.message();
  return fmt::format("GPU {} ({}, {:.1f} of {:.1f} GiB free)", gpu.index, gpu.name, gib(gpu.free_bytes),
                     gib(gpu.total_bytes));
}

}  // namespace lockstep::site
