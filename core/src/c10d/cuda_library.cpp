#include "c10d/cuda_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "base/printable.h"
#include "lockstep/base/log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCudaLibrary = "libtorch_cuda.so";

// The driver makes /dev/nvidiactl, but on some machines only for the first program that asks for a GPU; /proc lists the
// GPUs before. /dev/dxg is Windows' driver, as seen under WSL.
bool has_driver(const fs::path& root) {
  std::error_code ignored;
  if (fs::exists(root / "dev/nvidiactl", ignored) || fs::exists(root / "dev/dxg", ignored)) return true;
  return fs::directory_iterator(root / "proc/driver/nvidia/gpus", ignored) != fs::directory_iterator();
}

// CUDA takes the entries before the first one that names no device, so the first one decides. Numbers, and names that
// begin with GPU- and MIG-, may be devices; "", "-1" and "NoDevFiles" are none.
bool leaves_a_gpu(std::string_view visible_devices) {
  visible_devices.remove_prefix(std::min(visible_devices.find_first_not_of(' '), visible_devices.size()));
  if (visible_devices.starts_with("GPU-") || visible_devices.starts_with("MIG-")) return true;
  return !visible_devices.empty() && std::isdigit(static_cast<unsigned char>(visible_devices.front())) != 0;
}

// The folder of a library that this process has loaded.
std::optional<fs::path> folder_of(const char* library) {
  void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
  if (handle == nullptr) return std::nullopt;
  link_map* map = nullptr;
  std::optional<fs::path> folder;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0) folder = fs::path(map->l_name).parent_path();
  dlclose(handle);
  return folder;
}

std::string last_error() {
  const char* text = dlerror();
  return text == nullptr ? "the system gives no reason" : text;
}

// Why the library is not in the process now; empty: it is.
std::string load_library(const std::optional<fs::path>& folder) {
  std::error_code ignored;
  if (folder && !fs::exists(*folder / kCudaLibrary, ignored)) {
    return fmt::format(
        "LibTorch in {} is without CUDA: expected {} beside its libtorch_cpu.so, found none. Use the wheel torch with "
        "CUDA, of the same release",
        printable(folder->native()), kCudaLibrary);
  }
  const std::string path = folder ? (*folder / kCudaLibrary).native() : kCudaLibrary;
  // RTLD_GLOBAL, as if the program had linked it. Never closed: CUDA cannot be unloaded.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  return fmt::format(
      "LibTorch's CUDA library cannot be loaded: {}. Install the wheel torch with all packages that it depends on",
      last_error());
}

}  // namespace

CudaSurroundings CudaSurroundings::of_process() {
  CudaSurroundings found{.torch_lib = folder_of("libtorch_cpu.so")};
  // Not from Environment, which takes a variable without a value as not set.
  if (const char* value = std::getenv("CUDA_VISIBLE_DEVICES"); value != nullptr) found.visible_devices = value;
  return found;
}

std::string why_no_gpu(const CudaSurroundings& surroundings) {
  if (surroundings.visible_devices && !leaves_a_gpu(*surroundings.visible_devices)) {
    return fmt::format(
        "CUDA_VISIBLE_DEVICES is '{}', which hides all GPUs; name the GPUs of this process there, or unset it",
        printable(*surroundings.visible_devices));
  }
  if (has_driver(surroundings.root)) return {};
  return "there is no NVIDIA driver here (no /dev/nvidiactl, nothing in /proc/driver/nvidia/gpus); install it (Debian: "
         "nvidia-driver), or give the container its GPUs (docker --gpus all). `lockstep doctor` shows what there is";
}

CudaSupport load_cuda_in(const CudaSurroundings& surroundings) {
  CudaSupport support;
  support.reason = why_no_gpu(surroundings);
  support.gpu_visible = support.reason.empty();
  if (!support.gpu_visible) return support;
  support.reason = load_library(surroundings.torch_lib);
  support.loaded = support.reason.empty();
  return support;
}

CudaSupport load_cuda() {
  CudaSupport support = load_cuda_in(CudaSurroundings::of_process());
  if (support.gpu_visible && !support.loaded)
    log::warning(fmt::format("a GPU is there, but this process cannot use it: {}", support.reason));
  return support;
}

}  // namespace lockstep
