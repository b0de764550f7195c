#include "c10d/backends.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep {
namespace {

#ifdef LOCKSTEP_MPI
constexpr bool kHasMpi = true;
#else
constexpr bool kHasMpi = false;
#endif
#ifdef LOCKSTEP_NCCL
constexpr bool kHasNccl = true;
#else
constexpr bool kHasNccl = false;
#endif

std::string what_there_is() {
  std::string text = "this build has: lockstep (CPU; gloo is another name for it; GPU tensors through host memory)";
  if (kHasMpi) text += ", mpi (the same over MPI)";
  if (kHasNccl) text += ", nccl (GPU)";
  return text + "; per device as in cpu:lockstep" + (kHasNccl ? ",cuda:nccl" : "");
}

[[noreturn]] void reject(ErrorCode code, const std::string& text) {
  throw ArgumentError(code, fmt::format("init_process_group: {}; {}", text, what_there_is()));
}

BackendName parse_name(const std::string& name, const std::string& entry) {
  if (name == "lockstep" || name == "gloo") return BackendName::kLockstep;
  if (name != "mpi" && name != "nccl") {
    reject(ErrorCode::kInvalidArgument, fmt::format("unknown backend '{}'", entry));
  }
  if (name == "mpi" ? !kHasMpi : !kHasNccl) {
    const char* remedy = name == "mpi" ? "MPI (Debian: libopenmpi-dev, openmpi-bin)" : "LibTorch's CUDA wheel";
    reject(ErrorCode::kUnsupported,
           fmt::format("backend '{}' is not part of this build; build Lockstep with {}", name, remedy));
  }
  return name == "mpi" ? BackendName::kMpi : BackendName::kNccl;
}

c10::DeviceType parse_device(const std::string& device, const std::string& entry) {
  if (device == "cpu") return c10::DeviceType::CPU;
  if (device == "cuda") return c10::DeviceType::CUDA;
  reject(ErrorCode::kInvalidArgument,
         fmt::format("backend '{}': expected the device cpu or cuda, found '{}'", entry, device));
}

void add(BackendChoice& choice, c10::DeviceType device, BackendName backend, std::string_view text) {
  if (choice.serves(device)) {
    reject(ErrorCode::kInvalidArgument, fmt::format("backend '{}' names two backends for {} tensors", text,
                                                    c10::DeviceTypeName(device, /*lower_case=*/true)));
  }
  choice.entries.push_back({device, backend});
}

// "name" or "device:name".
void add_entry(BackendChoice& choice, const std::string& entry, std::string_view text) {
  const std::size_t colon = entry.find(':');
  if (colon == std::string::npos) {
    const BackendName backend = parse_name(entry, entry);
    if (backend != BackendName::kNccl) add(choice, c10::DeviceType::CPU, backend, text);
    add(choice, c10::DeviceType::CUDA, backend, text);
    return;
  }
  const BackendName backend = parse_name(entry.substr(colon + 1), entry);
  const c10::DeviceType device = parse_device(entry.substr(0, colon), entry);
  if (backend == BackendName::kNccl && device != c10::DeviceType::CUDA) {
    reject(ErrorCode::kUnsupported, "backend 'nccl' serves CUDA tensors, not 'cpu'");
  }
  add(choice, device, backend, text);
}

// Whether the program has loaded LibTorch's CUDA library, and there is a GPU. LibTorch itself is asked second: if asked
// before that library is loaded, it remembers for good that there is no CUDA.
bool has_gpus() {
  void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return false;
  dlclose(library);
  return torch::cuda::is_available();
}

struct Library {
  const char* backend;
  const char* file;
};

const BackendPlugin& load(const Library& library) {
  // The loader searches this program's RUNPATH and LD_LIBRARY_PATH. Never closed: MPI and CUDA cannot be unloaded.
  // RTLD_GLOBAL: MPI's own plug-ins look for its symbols.
  void* handle = dlopen(library.file, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    throw ArgumentError(ErrorCode::kUnsupported,
                        fmt::format("init_process_group: the library of backend '{}' cannot be loaded: {}. Install it "
                                    "beside the program or name its folder in LD_LIBRARY_PATH",
                                    library.backend, dlerror()));
  }
  auto* entry = reinterpret_cast<const BackendPlugin* (*)()>(dlsym(handle, kBackendEntry));
  const std::string build = entry == nullptr ? "something else" : entry()->build;
  if (build != kBackendBuild) {
    throw ArgumentError(ErrorCode::kUnsupported,
                        fmt::format("init_process_group: {} is of {}, this program of {}; use those of one build",
                                    library.file, build, kBackendBuild));
  }
  return *entry();
}

c10::intrusive_ptr<c10d::Backend> create(BackendName name, const BackendRequest& request) {
  if (name == BackendName::kLockstep) {
    ProcessGroupLockstepOptions options;
    options.rank = request.rank;
    options.world_size = request.group_size();
    options.name = request.name;
    options.timeout = request.timeout;
    options.global_ranks = request.global_ranks;
    options.members = request.members;
    return ProcessGroupLockstep::create(request.store, options);
  }
  const bool mpi = name == BackendName::kMpi;
  const Library library = mpi ? Library{"mpi", "liblockstep_mpi.so"} : Library{"nccl", "liblockstep_nccl.so"};
  BackendRequest own = request;
  own.store = std::make_shared<comm::PrefixStore>(library.backend, request.store);
  return load(library).create(own);
}

c10d::ProcessGroup::BackendType type_of(BackendName name) {
  switch (name) {
    case BackendName::kMpi: return c10d::ProcessGroup::BackendType::MPI;
    case BackendName::kNccl: return c10d::ProcessGroup::BackendType::NCCL;
    default: return c10d::ProcessGroup::BackendType::CUSTOM;
  }
}

}  // namespace

bool is_available(std::string_view backend) {
  if (backend == "mpi") return kHasMpi;
  if (backend == "nccl") return kHasNccl;
  return backend.empty() || backend == "lockstep" || backend == "gloo";
}

bool BackendChoice::serves(c10::DeviceType device) const {
  return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.device == device; });
}

BackendChoice parse_backends(std::string_view text) {
  if (text.empty()) text = kHasNccl && has_gpus() ? "cpu:lockstep,cuda:nccl" : "lockstep";
  BackendChoice choice;
  std::istringstream entries{std::string(text)};
  for (std::string entry; std::getline(entries, entry, ',');) add_entry(choice, entry, text);
  return choice;
}

std::vector<DeviceBackend> make_backends(const BackendChoice& choice, const BackendRequest& request) {
  std::vector<DeviceBackend> made;
  for (const auto& [device, name] : choice.entries) {
    const auto type = type_of(name);
    const auto same =
        std::find_if(made.begin(), made.end(), [&](const DeviceBackend& other) { return other.type == type; });
    // A copy: the vector may move while it grows.
    const c10::intrusive_ptr<c10d::Backend> backend = same != made.end() ? same->backend : create(name, request);
    made.push_back({device, type, backend});
  }
  return made;
}

c10::Device choose_device(const BackendChoice& choice, int local_rank) {
  const bool nccl = std::any_of(choice.entries.begin(), choice.entries.end(),
                                [](const auto& entry) { return entry.backend == BackendName::kNccl; });
  if (!nccl || !torch::cuda::is_available()) return c10::Device(c10::kCPU);
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % static_cast<int>(torch::cuda::device_count()))};
}

}  // namespace lockstep
