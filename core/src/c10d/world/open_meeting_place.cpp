#include "c10d/world/open_meeting_place.h"

#include <fmt/format.h>

#include "base/host.h"
#include "c10d/backend/backend_plugin.h"
#include "lockstep/base/environment.h"
#include "lockstep/c10d/errors.h"
#include "store/tcp/socket.h"

namespace lockstep {
namespace {

bool is_for_others(const std::string& address) {
  return !address.empty() && !comm::is_loopback({address, 0});
}

std::string own_address(const comm::Store& store, const Environment& environment) {
  const std::string address = store.local_address();
  if (is_for_others(address)) return address;
  if (const auto master = environment.get("MASTER_ADDR")) {
    const auto found = comm::address_towards(*master);
    if (found.ok() && is_for_others(found.value())) return found.value();
  }
  return loopback_address();
}

}  // namespace

std::shared_ptr<comm::MeetingPlace> open_meeting_place(const comm::Store& store, const std::string& job_key,
                                                       const std::string& what) {
  const Environment environment = Environment::of_process();
  comm::MeetingPlace::Options options;
  options.build = kBackendBuild;
  options.job_key = job_key.empty() ? environment.get("LOCKSTEP_JOB_KEY").value_or("") : job_key;
  options.address = own_address(store, environment);
  auto place = comm::MeetingPlace::open(options);
  if (!place.ok()) throw_status(place.status(), what);
  return std::move(place).value();
}

Status replaced_by(const std::string& group, const std::string& how) {
  return {ErrorCode::kAborted,
          fmt::format("group '{}' was formed anew by reconfigure ({}): use the new group, and make wrappers "
                      "(DistributedDataParallel and the like) again",
                      group, how)};
}

}  // namespace lockstep
