#include "c10d/world/backends.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "base/call_place.h"
#include "c10d/backend/staging.h"
#include "lockstep/base/log.h"
#include "lockstep/c10d/errors.h"
#include "lockstep/c10d/process_group_lockstep.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep {
namespace {

// LOCKSTEP_MPI is the MPI of this build, as mpi_detail::library_name() calls it.
#ifdef LOCKSTEP_MPI
constexpr bool kHasMpi = true;
constexpr const char* kMpiLibrary = LOCKSTEP_MPI;
#else
constexpr bool kHasMpi = false;
constexpr const char* kMpiLibrary = "";
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

const char* text_of(BackendName name) {
  switch (name) {
    case BackendName::kMpi: return "mpi";
    case BackendName::kNccl: return "nccl";
    default: return "lockstep";
  }
}

// Reads one backend string, for `caller`.
class BackendParser {
 public:
  BackendParser(std::string_view text, const char* caller) : text_(text), caller_(caller) {}

  BackendChoice parse() {
    std::istringstream entries{text_};
    for (std::string entry; std::getline(entries, entry, ',');) add_entry(entry);
    return std::move(choice_);
  }

 private:
  [[noreturn]] void reject(ErrorCode code, const std::string& text) const {
    throw ArgumentError(code, fmt::format("{}: {}; {}", caller_, text, what_there_is()));
  }

  BackendName parse_name(const std::string& name, const std::string& entry) const {
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

  // By the name that LibTorch has for it, which is the maker's own for PrivateUse1.
  c10::DeviceType parse_device(const std::string& name, const std::string& entry) const {
    std::string known;
    const std::vector<c10::DeviceType> devices = staged_devices();
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (name == device_name(devices[i])) return devices[i];
      known += (i == 0 ? "" : i + 1 == devices.size() ? " or " : ", ") + device_name(devices[i]);
    }
    reject(ErrorCode::kInvalidArgument,
           fmt::format("backend '{}': expected the device {}, found '{}'", entry, known, name));
  }

  void add(c10::DeviceType device, BackendName backend) {
    if (choice_.serves(device)) {
      reject(ErrorCode::kInvalidArgument,
             fmt::format("backend '{}' names two backends for {} tensors", text_, device_name(device)));
    }
    choice_.entries.push_back({device, backend});
  }

  // "name" or "device:name".
  void add_entry(const std::string& entry) {
    const std::size_t colon = entry.find(':');
    if (colon == std::string::npos) {
      const BackendName backend = parse_name(entry, entry);
      if (backend == BackendName::kNccl) return add(c10::DeviceType::CUDA, backend);
      for (const c10::DeviceType device : staged_devices()) add(device, backend);
      return;
    }
    const BackendName backend = parse_name(entry.substr(colon + 1), entry);
    const c10::DeviceType device = parse_device(entry.substr(0, colon), entry);
    if (backend == BackendName::kNccl && device != c10::DeviceType::CUDA) {
      reject(ErrorCode::kUnsupported, fmt::format("backend 'nccl' serves CUDA tensors, not '{}'", device_name(device)));
    }
    add(device, backend);
  }

  const std::string text_;
  const char* const caller_;
  BackendChoice choice_;
};

// Whether the program has loaded LibTorch's CUDA library, and there is a GPU. LibTorch itself is asked second: if asked
// before that library is loaded, it remembers that there is no CUDA.
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
                        fmt::format("the library of backend '{}' cannot be loaded: {}. Install it "
                                    "beside the program or name its folder in LD_LIBRARY_PATH",
                                    library.backend, dlerror()));
  }
  auto* entry = reinterpret_cast<const BackendPlugin* (*)()>(dlsym(handle, kBackendEntry));
  const BackendPlugin* plugin = entry == nullptr ? nullptr : entry();
  const std::string build = plugin == nullptr ? "something else" : plugin->build;
  if (plugin == nullptr || build != kBackendBuild) {
    throw ArgumentError(ErrorCode::kUnsupported, fmt::format("{} is of {}, this program of {}; use those of one build",
                                                             library.file, build, kBackendBuild));
  }
  return *plugin;
}

constexpr Library kNcclLibrary{"nccl", "liblockstep_nccl.so"};

// The backends of a program that names none. NCCL must be there: a program that has loaded CUDA where it runs need not
// have been installed with it, and can still train on the CPU.
const char* default_backends() {
  if (!kHasNccl || !has_gpus()) return "lockstep";
  try {
    load(kNcclLibrary);
    return "cpu:lockstep,cuda:nccl";
  } catch (const ArgumentError& error) {
    log::warning(
        fmt::format("a GPU is there, but {}. Until then local_device() is the CPU", error.what_without_backtrace()));
    return "lockstep";
  }
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
  const Library library = mpi ? Library{"mpi", "liblockstep_mpi.so"} : kNcclLibrary;
  BackendRequest own = request;
  own.store = std::make_shared<comm::PrefixStore>(library.backend, request.store);
  if (own.options != nullptr && own.options->backend != library.backend) own.options.reset();
  own.places = {&current_call_place, &describe_place};
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

std::unique_ptr<DeviceGraph> make_device_graph(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  if (!kHasNccl) {
    throw ArgumentError(ErrorCode::kUnsupported,
                        "CUDA graphs are not part of this build; build Lockstep with LibTorch's CUDA wheel");
  }
  return load(kNcclLibrary).make_graph(device);
}

bool is_available(std::string_view backend) {
  if (backend == "mpi") return kHasMpi;
  if (backend == "nccl") return kHasNccl;
  return backend.empty() || backend == "lockstep" || backend == "gloo";
}

bool BackendChoice::serves(c10::DeviceType device) const {
  return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.device == device; });
}

bool BackendChoice::has(BackendName backend) const {
  return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.backend == backend; });
}

void check_mpi_of_program(const BackendChoice& choice, const std::optional<ProgramCommunicator::Mpi>& mpi,
                          const char* caller) {
  if (!choice.has(BackendName::kMpi)) return;
  const auto refuse = [&](const std::string& reason) {
    throw ArgumentError(
        ErrorCode::kUnsupported,
        fmt::format("{}: backend mpi: {}. Backend lockstep works with any communicator", caller, reason));
  };
  if (!mpi) refuse("the world's communicator is not MPI's, or the world was made without backend mpi");
  if (mpi->library != kMpiLibrary) {
    refuse(
        fmt::format("the program was compiled with {}, and this build of Lockstep with {}", mpi->library, kMpiLibrary));
  }
  if (!mpi->threads) {
    refuse(
        fmt::format("expected MPI initialised with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE, since backward passes "
                    "communicate from threads of their own, found {}",
                    mpi->level_name));
  }
}

BackendChoice parse_backends(std::string_view text, const char* caller) {
  if (text.empty()) text = default_backends();
  return BackendParser(text, caller).parse();
}

std::string device_name(c10::DeviceType device) {
  return c10::DeviceTypeName(device, /*lower_case=*/true);
}

std::string text_of(const BackendChoice& choice) {
  std::vector<std::string> entries;
  entries.reserve(choice.entries.size());
  for (const auto& [device, backend] : choice.entries)
    entries.push_back(fmt::format("{}:{}", device_name(device), text_of(backend)));
  std::sort(entries.begin(), entries.end());
  return fmt::format("{}", fmt::join(entries, ","));
}

void check_backend_options(const BackendChoice& choice, const BackendOptions& options, const char* caller) {
  if (options == nullptr) return;
  const bool served = std::any_of(choice.entries.begin(), choice.entries.end(),
                                  [&](const auto& entry) { return options->backend == text_of(entry.backend); });
  if (served && options->backend == text_of(BackendName::kNccl)) return;
  std::vector<std::string> names;
  names.reserve(choice.entries.size());
  for (const auto& entry : choice.entries) names.emplace_back(text_of(entry.backend));
  names.erase(std::unique(names.begin(), names.end()), names.end());
  throw ArgumentError(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: backend_options are of backend '{}', but {}; leave them out, or name the backend '{}'", caller,
                  options->backend,
                  served ? "that backend has no options of its own"
                         : fmt::format("the group's is {}", fmt::join(names, " and ")),
                  text_of(BackendName::kNccl)));
}

std::vector<DeviceBackend> make_backends(const BackendChoice& choice, const BackendRequest& request) {
  // Each blocks until all members are there: in one order, whichever order this rank's caller has named them in.
  std::map<BackendName, c10::intrusive_ptr<c10d::Backend>> backends;
  for (const auto& entry : choice.entries) backends.try_emplace(entry.backend);
  for (auto& [name, backend] : backends) backend = create(name, request);
  std::vector<DeviceBackend> made;
  made.reserve(choice.entries.size());
  for (const auto& [device, name] : choice.entries) made.push_back({device, type_of(name), backends[name]});
  return made;
}

c10::Device choose_device(const BackendChoice& choice, int local_rank) {
  if (!choice.has(BackendName::kNccl) || !torch::cuda::is_available()) return c10::Device(c10::kCPU);
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % static_cast<int>(torch::cuda::device_count()))};
}

}  // namespace lockstep
