// Which network interface other machines reach this one by.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::comm {

struct NetworkInterface {
  std::string name;      // "eth0"; empty: not known
  bool is_ipv6 = false;  // of the address that led to it
};

// The interface that has this address ("10.0.0.7", "fe80::1%eth0"). kNotFound when none has.
Result<NetworkInterface> interface_with_address(const std::string& address);

// The interface through which the kernel would send to this host (a name or an address). Nothing is sent.
Result<NetworkInterface> interface_towards(const std::string& host);

// The IP addresses (numbers) that connections of this machine to others may come from: all but those of the loopback
// interface, and of IPv6 the link-local ones.
Result<std::vector<std::string>> addresses_of_machine();

}  // namespace lockstep::comm
