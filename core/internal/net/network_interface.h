// By which network interface other machines reach this one.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::comm {

struct NetworkInterface {
  std::string name;      // "eth0"; empty: not known
  bool is_ipv6 = false;  // whether the address that led to it is IPv6
};

// The interface that has this address ("10.0.0.7", "fe80::1%eth0"). kNotFound if none has.
Result<NetworkInterface> interface_with_address(const std::string& address);

// The interface through which the kernel would send to this host (a name or an address). Nothing is sent.
Result<NetworkInterface> interface_towards(const std::string& host);

}  // namespace lockstep::comm
