#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/host.h"
#include "doctor/checks.h"
#include "doctor/text_files.h"
#include "store/tcp/socket.h"

namespace lockstep::doctor {
namespace {

// Addresses by interface, of those that are up.
std::map<std::string, std::vector<std::string>> interfaces() {
  std::map<std::string, std::vector<std::string>> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (family == AF_INET6) address = &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    char text[INET6_ADDRSTRLEN] = "";
    if (address != nullptr && inet_ntop(family, address, text, sizeof text) != nullptr)
      found[entry->ifa_name].push_back(text);
  }
  return found;
}

// The interface of the default route of IPv4; empty: none.
std::string default_interface(const std::string& root) {
  std::ifstream file(root + "/proc/net/route");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, destination;
    if (words >> name >> destination && destination == "00000000") return name;
  }
  return "";
}

Finding check_way_out(const std::string& root, const std::map<std::string, std::vector<std::string>>& all) {
  const bool only_loopback = all.empty() || (all.size() == 1 && all.begin()->first == "lo");
  if (only_loopback) {
    return warning("network", "there is no interface but the loopback one",
                   "one machine works; for several, give this one (or its container, --network host) a network");
  }
  const std::string name = default_interface(root);
  if (name.empty()) {
    return warning("network", "there is no default route",
                   "ranks use the interface that routes to the master: name a master "
                   "in a network that is listed here");
  }
  return ok("network",
            fmt::format("{} has the default route; ranks use the interface that routes to the master", name));
}

// No warning: between distant machines bbr is the better one.
Finding check_congestion_control(const std::string& root) {
  const std::string name = first_line(root + "/proc/sys/net/ipv4/tcp_congestion_control");
  if (name.empty()) return ok("tcp", "the congestion control is not known");
  std::string text = fmt::format("congestion control: {}", name);
  if (name == "bbr") text += "; in virtual machines of one network cubic can be faster (docs/several_machines.md)";
  return ok("tcp", text);
}

}  // namespace

// An interface that is down lets a program listen, and nobody connect.
Status check_loopback() {
  const std::string address = loopback_address();
  const auto reach = [&]() -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const Fd listener, comm::listen_at({address, 0}));
    LOCKSTEP_ASSIGN_OR_RETURN(const comm::Endpoint place, comm::local_endpoint(listener.get()));
    return comm::connect_to(place, Deadline::after(std::chrono::seconds(5))).status();
  };
  return reach().with_context("a process cannot reach another one at " + address);
}

Findings check_network(const std::string& root) {
  Findings findings;
  const auto all = interfaces();
  for (const auto& [name, addresses] : all) {
    const std::string mtu = first_line(fmt::format("{}/sys/class/net/{}/mtu", root, name));
    const std::string speed = first_line(fmt::format("{}/sys/class/net/{}/speed", root, name));
    std::string text = fmt::format("{}, MTU {}", fmt::join(addresses, " "), mtu.empty() ? "not known" : mtu);
    if (!speed.empty() && speed[0] != '-') text += fmt::format(", {} Mbit/s", speed);
    findings.push_back(ok(name, text));
  }
  findings.push_back(check_way_out(root, all));
  findings.push_back(check_congestion_control(root));
  if (const Status loopback = check_loopback(); !loopback.ok()) {
    findings.push_back(problem("ports", loopback.message(), "bring the loopback interface up (ip link set lo up)"));
  } else if (!comm::listen_at({loopback_address(), 29500}).ok()) {
    findings.push_back(warning("ports", "port 29500, PyTorch's default, is taken",
                               "lockstep run chooses a free one; by hand set another MASTER_PORT"));
  } else {
    findings.push_back(ok("ports", "free ones can be had; 29500, PyTorch's default, is free"));
  }
  return findings;
}

}  // namespace lockstep::doctor
