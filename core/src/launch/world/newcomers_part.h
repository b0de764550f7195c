// The part of the launcher's store in which newcomers wait.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/store/store.h"

namespace lockstep::launch {

// `address`: "host:port" of the launcher's store. Blocks for `timeout` at most, as do the store's calls without a
// deadline.
Result<std::shared_ptr<comm::Store>> newcomers_part(const std::string& address, const std::string& job_key,
                                                    std::chrono::milliseconds timeout);

}  // namespace lockstep::launch
