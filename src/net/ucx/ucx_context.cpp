#include "net/ucx/ucx_context.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"

namespace lockstep::comm {
namespace {

// A default for a setting that the user can change by UCX_<name> in the environment.
struct Setting {
  const char* name;
  std::string value;
  // Of TCP alone: UCX up to 1.16 takes it without the prefix TCP_ only. Other transports have nothing of that name.
  bool has_short_name = false;
};

std::vector<Setting> settings(const NetworkInterface& interface) {
  std::vector<Setting> result{
      // Not shared memory: the local engine does that.
      {"TLS", "tcp,rc,ud"},
      // Measured through TCP: eager messages in large segments move twice as many bytes per second as a rendezvous, and
      // eight times as many as segments of the default 8 KiB.
      {"RNDV_THRESH", "inf"},
      {"TCP_TX_SEG_SIZE", "256k", true},
      {"TCP_RX_SEG_SIZE", "256k", true},
      {"TCP_TX_BUFS_GROW", "2"},
      {"TCP_RX_BUFS_GROW", "2"},
      // If a machine disappears while nothing is under way, this is noticed within about 5 s.
      {"TCP_KEEPIDLE", "2s", true},
      {"TCP_KEEPINTVL", "1s", true},
      {"TCP_KEEPCNT", "3", true},
      {"TCP_AF_PRIO", interface.is_ipv6 ? "inet6,inet" : "inet,inet6", true},
      {"WARN_UNUSED_ENV_VARS", "n"},
      {"LOG_LEVEL", "error"},
  };
  if (!interface.name.empty()) result.push_back({"NET_DEVICES", interface.name});
  return result;
}

// Not from Environment: UCX takes a variable without a value as set.
bool is_set(const std::string& name) {
  return std::getenv((std::string("UCX_") + name).c_str()) != nullptr;
}

// UCX wants segments that are received to be at least as large as those that are sent. So who sets one of the sizes has
// UCX's default of the other.
bool is_users(const Setting& setting) {
  const bool is_size = std::string_view(setting.name).ends_with("_SEG_SIZE");
  const auto is_set_for = [](const char* direction) { return is_set(fmt::format("TCP_{}_SEG_SIZE", direction)); };
  return is_set(setting.name) || (is_size && (is_set_for("TX") || is_set_for("RX")));
}

void apply(const UcxLibrary& ucx, ucp_config_t* config, const Setting& setting) {
  constexpr std::size_t kPrefixBytes = 4;  // of TCP_
  // A setting that this version of UCX does not know is not needed there.
  (void)ucx.ucp_config_modify(config, setting.name, setting.value.c_str());
  if (setting.has_short_name) {
    (void)ucx.ucp_config_modify(config, setting.name + kPrefixBytes, setting.value.c_str());
  }
}

// The contexts by the interface's name, and whether it is for IPv6.
struct Contexts {
  Mutex mutex;
  std::map<std::pair<std::string, bool>, std::weak_ptr<UcxContext>> known LOCKSTEP_GUARDED_BY(mutex);
};

}  // namespace

Result<std::shared_ptr<UcxContext>> UcxContext::get(const UcxLibrary& ucx, const NetworkInterface& interface) {
  static constinit OfProcess<Contexts> contexts;
  Contexts& all = contexts.get();
  MutexLock lock(all.mutex);
  std::weak_ptr<UcxContext>& known = all.known[{interface.name, interface.is_ipv6}];
  if (auto context = known.lock()) return context;
  LOCKSTEP_ASSIGN_OR_RETURN(auto context, make(ucx, interface));
  known = context;
  return context;
}

Result<std::shared_ptr<UcxContext>> UcxContext::make(const UcxLibrary& ucx, const NetworkInterface& interface) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucx.ucp_config_read(nullptr, nullptr, &config); status != UCS_OK)
    return Status(ErrorCode::kUnavailable, fmt::format("UCX cannot read its settings: {}", ucx.text_of(status)));
  for (const Setting& setting : settings(interface)) {
    if (!is_users(setting)) apply(ucx, config, setting);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // each group has its own lock
  ucp_context_h handle = nullptr;
  const ucs_status_t status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &handle);
  ucx.ucp_config_release(config);
  if (status != UCS_OK) {
    return Status(ErrorCode::kUnavailable,
                  fmt::format("UCX cannot use the network interface '{}': {}. UCX_NET_DEVICES and UCX_TLS choose "
                              "others; `ucx_info -d` lists them",
                              interface.name.empty() ? "(any)" : interface.name, ucx.text_of(status)));
  }
  return std::shared_ptr<UcxContext>(new UcxContext(ucx, handle));
}

}  // namespace lockstep::comm
