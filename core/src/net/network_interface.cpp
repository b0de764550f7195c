#include "net/network_interface.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/host.h"

namespace lockstep::comm {
namespace {

bool same_address(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 && std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                                                 &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, 16) == 0;
}

using InterfaceList = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

Result<InterfaceList> list_interfaces() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return Status::from_errno("getifaddrs", errno);
  return InterfaceList(raw, &freeifaddrs);
}

Result<NetworkInterface> find(const sockaddr* address, const std::string& text) {
  LOCKSTEP_ASSIGN_OR_RETURN(const InterfaceList list, list_interfaces());
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || !same_address(entry->ifa_addr, address)) continue;
    return NetworkInterface{entry->ifa_name, address->sa_family == AF_INET6};
  }
  return Status(ErrorCode::kNotFound, fmt::format("no network interface of this machine has the address {}", text));
}

Result<AddressList> resolve(const std::string& host, int flags) {
  int error = 0;
  AddressList list = find_addresses(host, "9", SOCK_DGRAM, flags | AI_NUMERICSERV, &error);
  if (list != nullptr) return list;
  return Status(ErrorCode::kNotFound, fmt::format("no address for '{}': {}", host, gai_strerror(error)));
}

}  // namespace

Result<NetworkInterface> interface_with_address(const std::string& address) {
  // An IPv4 address that is written as IPv6 means the IPv4 address.
  const std::string plain = address.starts_with("::ffff:") ? address.substr(7) : address;
  LOCKSTEP_ASSIGN_OR_RETURN(const AddressList list, resolve(plain, AI_NUMERICHOST));
  return find(list->ai_addr, address);
}

Result<NetworkInterface> interface_towards(const std::string& host) {
  LOCKSTEP_ASSIGN_OR_RETURN(const AddressList list, resolve(address_for_others(host), 0));
  Status last(ErrorCode::kNotFound, fmt::format("'{}' has no address", host));
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    sockaddr_storage local{};
    if (!find_source_address(*entry, local)) {
      last = Status::from_errno(fmt::format("no route to '{}'", host), errno);
      continue;
    }
    auto found = find(reinterpret_cast<const sockaddr*>(&local), host);
    if (found.ok()) return found;
    last = found.status();
  }
  return last;
}

}  // namespace lockstep::comm
