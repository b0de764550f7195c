// Port guard: closes TCP sockets on which a library listens to all machines but those of the group. The kernel drops
// what other machines send there, before the library sees it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// Which addresses may reach a port.
struct Admitted {
  std::vector<std::string> addresses;  // IP addresses, as numbers
  bool loopback = false;               // this machine's loopback addresses too
};

// Closes `socket` to all others; it is a TCP socket that listens or is about to. From now on the socket, and
// connections that it accepts, get segments only from admitted addresses. Others get no answer. kInvalidArgument: an
// entry is no address. kUnavailable: too many addresses for the kernel (some hundreds of machines); then the socket is
// open to all, also if it was closed before, so that no admitted machine is kept out.
Status close_to_strangers(int socket, const Admitted& admitted);

}  // namespace lockstep::comm
