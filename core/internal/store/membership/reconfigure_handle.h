// What a process tells the others so that they can meet it later, whoever has died by then: PyTorch's reconfigure
// handle. It says where the process listens with a store of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/store/endpoint.h"

namespace lockstep::comm {

struct ReconfigureHandle {
  std::string build = {};  // of the library; all members have the same
  std::string job = {};    // stands for the job's key, which it does not tell; "-": the process has no job key
  std::string id = {};     // random: two meeting places never have the same
  int rank = 0;            // that the process had when it was asked; sets are ordered by it
  int pid = 0;
  std::string host = {};  // for errors
  Endpoint store = {};
};

std::string to_text(const ReconfigureHandle& handle);
// kInvalidArgument for any other text; a handle that is damaged or cut off is one too.
Result<ReconfigureHandle> parse_reconfigure_handle(std::string_view text);

// For handles by rank. kUnavailable: the ranks are on several hosts, and others cannot reach one of them.
Status check_reachable(const std::vector<std::string>& handles);

// "pid 12 on host a (rank 1 before)".
std::string describe(const ReconfigureHandle& handle);

}  // namespace lockstep::comm
