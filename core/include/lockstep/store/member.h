// The record of one rank: what the rank tells the others about itself when it joins the world, or a group outside a
// world.
#pragma once

#include <string>
#include <vector>

namespace lockstep::comm {

struct Member {
  int rank = 0;
  int group_size = 1;
  int pid = 0;
  // Equal for ranks that can share memory: LOCKSTEP_MACHINE, or else the boot id, the network namespace (abstract Unix
  // sockets belong to one) and the user (memory is not handed to other users).
  std::string machine = {};
  std::string host = {};                    // for errors
  std::vector<std::string> addresses = {};  // numeric addresses of this machine: its connections come from these
};

}  // namespace lockstep::comm
