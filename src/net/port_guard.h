// Closes listening TCP sockets, which a library has opened by itself, to everyone but the members of a job: the kernel
// drops what other machines send there before the library sees any of it.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// Remembers which descriptors this process has, and tells which listening TCP sockets have come since.
class NewListeners {
 public:
  NewListeners();
  // Those whose port, two bytes in network order, occurs in `address`: other threads may have opened sockets too.
  std::vector<int> found(std::string_view address) const;

 private:
  std::set<int> before_;
};

// Who may reach a port.
struct Admitted {
  std::vector<std::string> addresses;  // IP addresses, as numbers
  bool loopback = false;               // this machine's loopback addresses too
};

// Closes `socket`, a TCP socket that listens or is about to, to all others: from now on it, and connections that it
// accepts, get segments from the admitted alone; nothing is answered to anybody else. kInvalidArgument for what is no
// address; kUnavailable when the kernel has no room for so many (some hundreds of machines).
Status close_to_strangers(int socket, const Admitted& admitted);

}  // namespace lockstep::comm
