#include "net/ucx/ucx_context.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// The name under which UCX up to 1.16 takes a setting from a program. kShort: without TCP_. kNone: there is none,
// because the short one would be that of other transports too.
enum class OldName { kSame, kShort, kNone };

// A default for a setting that the user can change by UCX_<name> in the environment.
struct Setting {
  const char* name;
  std::string value;
  OldName old_name = OldName::kSame;
};

// Not from Environment: UCX takes a variable without a value as set.
std::optional<std::string> users_value(const std::string& name) {
  const char* const value = std::getenv((std::string("UCX_") + name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// UCX opens nothing unless segments that are received may be as large as those that are sent. So who sets one of the
// two sizes sets both.
std::string segment_bytes() {
  const auto users = [](char direction) { return users_value(fmt::format("TCP_{}X_SEG_SIZE", direction)); };
  return users('R').value_or(users('T').value_or("256k"));
}

std::vector<Setting> settings(const NetworkInterface& interface) {
  std::vector<Setting> result{
      // Not shared memory: the local engine does that.
      {"TLS", "tcp,rc,ud"},
      // Measured through TCP: large segments move eight times as many bytes per second as those of the default 8 KiB.
      {"TCP_TX_SEG_SIZE", segment_bytes(), OldName::kShort},
      {"TCP_RX_SEG_SIZE", segment_bytes(), OldName::kShort},
      {"TCP_TX_BUFS_GROW", "2", OldName::kNone},
      {"TCP_RX_BUFS_GROW", "2", OldName::kNone},
      // If a machine disappears while nothing is under way, this is noticed within about 5 s.
      {"TCP_KEEPIDLE", "2s", OldName::kShort},
      {"TCP_KEEPINTVL", "1s", OldName::kShort},
      {"TCP_KEEPCNT", "3", OldName::kShort},
      {"TCP_AF_PRIO", interface.is_ipv6 ? "inet6,inet" : "inet,inet6", OldName::kShort},
      {"WARN_UNUSED_ENV_VARS", "n"},
      {"LOG_LEVEL", "error"},
  };
  if (!interface.name.empty()) result.push_back({"NET_DEVICES", interface.name});
  return result;
}

bool takes_full_names(const UcxLibrary& ucx) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucx.ucp_get_version(&major, &minor, &release);
  return std::pair(major, minor) >= std::pair(1U, 17U);
}

void apply(const UcxLibrary& ucx, ucp_config_t* config, const Setting& setting) {
  constexpr std::size_t kPrefixBytes = 4;  // of TCP_
  const OldName form = takes_full_names(ucx) ? OldName::kSame : setting.old_name;
  if (form == OldName::kNone) return;
  const char* const name = setting.name + (form == OldName::kShort ? kPrefixBytes : 0);
  // A setting that this version of UCX does not know is not needed there.
  (void)ucx.ucp_config_modify(config, name, setting.value.c_str());
}

}  // namespace

Result<const UcxLibrary*> UcxLibrary::get() {
  static const Result<const UcxLibrary*> library = load();
  return library;
}

Result<std::unique_ptr<UcxContext>> UcxContext::make(const UcxLibrary& ucx, const NetworkInterface& interface) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucx.ucp_config_read(nullptr, nullptr, &config); status != UCS_OK)
    return Status(ErrorCode::kUnavailable, fmt::format("UCX cannot read its settings: {}", ucx.text_of(status)));
  for (const Setting& setting : settings(interface)) {
    if (!users_value(setting.name)) apply(ucx, config, setting);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h handle = nullptr;
  const ucs_status_t status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &handle);
  ucx.ucp_config_release(config);
  if (status != UCS_OK) {
    return Status(ErrorCode::kUnavailable,
                  fmt::format("UCX cannot use the network interface '{}': {}. UCX_NET_DEVICES and UCX_TLS choose "
                              "others; `ucx_info -d` lists them",
                              interface.name.empty() ? "(any)" : interface.name, ucx.text_of(status)));
  }
  return std::unique_ptr<UcxContext>(new UcxContext(ucx, handle));
}

}  // namespace lockstep::comm
