// The machine that this process runs on: its name, for people; its running kernel, for comparisons; its addresses; and
// the control groups that limit a process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

struct addrinfo;
struct sockaddr_storage;

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

struct FreeAddresses {
  void operator()(addrinfo* list) const;
};
using AddressList = std::unique_ptr<addrinfo, FreeAddresses>;

// The addresses of a host, as getaddrinfo finds them for sockets of this type (SOCK_...) and with these flags (AI_...).
// Null: there is none; `error`, if given, then says why (gai_strerror).
AddressList find_addresses(const std::string& host, const char* port, int socket_type, int flags, int* error = nullptr);

// The address from which this machine would send to another. Nothing is sent. False: errno says why there is none.
bool find_source_address(const addrinfo& other, sockaddr_storage& own);

// The control groups (cgroups, of version 1 or 2) that limit a process.
struct ControlGroup {
  std::string folder;
  bool version_1 = false;  // its files have other names
};

// The groups in which `controller` ("cpu", "memory") limits a process: its own and all above them, up to the roots.
// Limits of all of them hold. Some may be missing: a container may see its own group as the root, under another name.
//
// `memberships` is the process's /proc/PID/cgroup, `mount` where control groups are mounted.
std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& memberships,
                                         const std::string& mount);

}  // namespace lockstep
