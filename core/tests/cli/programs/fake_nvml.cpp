// A library with NVML's interface and the GPUs that the environment describes, for tests:
//   FAKE_NVML_FREE   free GiB of each GPU: "70,10,40"; of 80
//   FAKE_NVML_FAULT  "init" or "count": that call fails; "gpu1": GPU 1 does not answer; "memory1": its memory is not
//   known
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kUnknown = 999;

bool fails(const std::string& what) {
  const char* fault = std::getenv("FAKE_NVML_FAULT");
  return fault != nullptr && what == fault;
}

std::vector<int> free_memory() {
  std::vector<int> all;
  const char* text = std::getenv("FAKE_NVML_FREE");
  for (char* end = nullptr; text != nullptr && *text != '\0'; text = *end == ',' ? end + 1 : end) {
    all.push_back(static_cast<int>(std::strtol(text, &end, 10)));
  }
  return all;
}

// A handle is the index plus one.
std::size_t index_of(const void* device) {
  return reinterpret_cast<std::size_t>(device) - 1;
}

}  // namespace

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};
struct Pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

// NOLINTBEGIN(readability-identifier-naming): NVML's names
int nvmlInit_v2() {
  return fails("init") ? kUnknown : 0;
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int) {
  return "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "999.1");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(free_memory().size());
  return fails("count") ? kUnknown : 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a number for the caller to give back, not an address
  *device = reinterpret_cast<void*>(static_cast<std::size_t>(index) + 1);
  return fails("gpu" + std::to_string(index)) ? kUnknown : 0;
}
int nvmlDeviceGetMemoryInfo(const void* device, Memory* memory) {
  const auto free = static_cast<unsigned long long>(free_memory()[index_of(device)]) << 30U;
  *memory = {80ULL << 30U, free, (80ULL << 30U) - free};
  return fails("memory" + std::to_string(index_of(device))) ? kUnknown : 0;
}
int nvmlDeviceGetName(const void*, char* text, unsigned size) {
  std::snprintf(text, size, "Fake GPU");
  return 0;
}
int nvmlDeviceGetUUID(const void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-fake-%zu", index_of(device));
  return 0;
}
int nvmlDeviceGetPciInfo_v3(const void* device, Pci* pci) {
  std::memset(pci, 0, sizeof *pci);
  pci->bus = static_cast<unsigned>(index_of(device)) + 1;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(const void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
// NOLINTEND(readability-identifier-naming)
}
