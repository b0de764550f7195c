#include "net/ucx/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <csignal>
#include <memory>

namespace lockstep::comm {
namespace {

// UCX installs handlers for crash signals as soon as it is loaded. This puts back the handlers of the program.
class KeepSignalHandlers {
 public:
  KeepSignalHandlers() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &before_[i]);
  }
  ~KeepSignalHandlers() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  KeepSignalHandlers(const KeepSignalHandlers&) = delete;
  KeepSignalHandlers& operator=(const KeepSignalHandlers&) = delete;

 private:
  static constexpr std::array<int, 6> kSignals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

Result<const UcxLibrary*> load() {
  const KeepSignalHandlers keep;
  void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(ErrorCode::kUnavailable,
                  fmt::format("groups that span machines need UCX, which cannot be loaded: {}. Install it (Debian: "
                              "apt-get install libucx0)",
                              dlerror()));
  }
  auto found = std::make_unique<UcxLibrary>();
  const char* missing = nullptr;
#define LOCKSTEP_UCX_LOOKUP(name)                                               \
  found->name = reinterpret_cast<decltype(found->name)>(dlsym(library, #name)); \
  if (found->name == nullptr) missing = #name;
  LOCKSTEP_UCX_FUNCTIONS(LOCKSTEP_UCX_LOOKUP)
#undef LOCKSTEP_UCX_LOOKUP
  if (missing != nullptr) {
    return Status(ErrorCode::kUnavailable,
                  fmt::format("the UCX of this machine has no function {}; version 1.13 or newer is needed", missing));
  }
  return found.release();
}

}  // namespace

Result<const UcxLibrary*> UcxLibrary::get() {
  static const Result<const UcxLibrary*> library = load();
  return library;
}

}  // namespace lockstep::comm
