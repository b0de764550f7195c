// The machine that this process runs on: its name, for people; its running kernel, for comparisons; its addresses.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep {

// As the system gives it; "(unknown)" when it gives none.
std::string host_name();

// Equal for all processes of a machine until it boots again; empty where the system has no such number. An error, for
// lack of descriptors, is never remembered: it must not make a process look as if it ran on another machine.
Result<std::string> boot_id();

// The IP addresses (as numbers) from which this machine may connect to others: all except those of the loopback
// interface and the link-local ones of IPv6.
Result<std::vector<std::string>> addresses_of_machine();

// Where processes of this machine meet: 127.0.0.1, or ::1 on a machine without it.
std::string loopback_address();

// `host`, except where that is this machine's own name and stands for loopback addresses alone, as in Debian's
// /etc/hosts (127.0.1.1): then the address at which other machines reach this one, by its default route if there is
// one.
std::string address_for_others(const std::string& host);

}  // namespace lockstep
