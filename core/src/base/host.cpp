#include "base/host.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <set>
#include <utility>

#include "base/no_forks.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/mutex.h"

namespace lockstep {
namespace {

Result<std::string> read_boot_id() {
  const Fd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!file.valid() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
    return Status::from_errno("cannot find out which machine this is (boot_id)", errno);
  std::array<char, 36> id;
  const ssize_t bytes = file.valid() ? read(file.get(), id.data(), id.size()) : 0;
  return std::string(id.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
}

// The address as a number; empty if other machines cannot see it.
std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* number = nullptr;
  if (address->sa_family == AF_INET) {
    number = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    number = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(static_cast<const in6_addr*>(number))) return {};
  }
  if (number == nullptr || inet_ntop(address->sa_family, number, text.data(), text.size()) == nullptr) return {};
  return text.data();
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24U == IN_LOOPBACKNET;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// With a domain or without, on either side.
bool is_own_name(const std::string& host) {
  const auto first_label = [](const std::string& name) { return name.substr(0, name.find('.')); };
  const std::string own = first_label(host_name());
  return strcasecmp(first_label(host).c_str(), own.c_str()) == 0 && strcasecmp(own.c_str(), "localhost") != 0;
}

bool stands_for_loopback(const std::string& host) {
  const AddressList list = find_addresses(host, nullptr, SOCK_STREAM, 0);
  if (list == nullptr) return false;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (!is_loopback(entry->ai_addr)) return false;
  }
  return true;
}

// The address of this machine on the way to an address that is nobody's (it is kept for documentation).
std::string address_on_default_route(const char* nobody) {
  const AddressList list = find_addresses(nobody, "9", SOCK_DGRAM, AI_NUMERICHOST);
  sockaddr_storage local{};
  if (list == nullptr || !find_source_address(*list, local)) return {};
  const auto* address = reinterpret_cast<const sockaddr*>(&local);
  return !is_loopback(address) ? text_of(address) : std::string();
}

}  // namespace

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != 0 ? name.data() : "(unknown)";
}

Result<std::string> boot_id() {
  const NoForks while_locked;
  static Mutex mutex;
  static std::string& known = *new std::string;
  MutexLock lock(mutex);
  if (known.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(known, read_boot_id());
  }
  return known;
}

Result<std::vector<std::string>> addresses_of_machine() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return Status::from_errno("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  std::set<std::string> addresses;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (std::string text = text_of(entry->ifa_addr); !text.empty()) addresses.insert(std::move(text));
  }
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

std::string loopback_address() {
  const Fd probe(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool missing = bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
                       (errno == EADDRNOTAVAIL || errno == EBADF);
  return missing ? "::1" : "127.0.0.1";
}

std::string address_for_others(const std::string& host) {
  if (!is_own_name(host) || !stands_for_loopback(host)) return host;
  for (const char* nobody : {"192.0.2.1", "2001:db8::1"}) {
    if (std::string address = address_on_default_route(nobody); !address.empty()) return address;
  }
  auto addresses = addresses_of_machine();
  return addresses.ok() && !addresses->empty() ? addresses->front() : host;
}

void FreeAddresses::operator()(addrinfo* list) const {
  freeaddrinfo(list);
}

AddressList find_addresses(const std::string& host, const char* port, int socket_type, int flags, int* error) {
  addrinfo hints{};
  hints.ai_socktype = socket_type;
  addrinfo* list = nullptr;
  const auto find = [&](int how, NoForks::Calls calls) {
    const NoForks while_locked(calls);
    hints.ai_flags = how;
    return getaddrinfo(host.c_str(), port, &hints, &list);
  };
  // Numbers need none of the C library's locks: a fork by other code may have copied a locked one.
  int result = find((flags & ~AI_ADDRCONFIG) | AI_NUMERICHOST, NoForks::Calls::kBrief);
  if (result == EAI_NONAME && (flags & AI_NUMERICHOST) == 0) result = find(flags, NoForks::Calls::kLong);
  if (error != nullptr) *error = result;
  return AddressList(list);
}

// Connecting a datagram socket asks the routing table.
bool find_source_address(const addrinfo& other, sockaddr_storage& own) {
  const Fd probe(socket(other.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  socklen_t bytes = sizeof own;
  return probe.valid() && connect(probe.get(), other.ai_addr, other.ai_addrlen) == 0 &&
         getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &bytes) == 0;
}

std::vector<ControlGroup> control_groups(const std::string& controller, const std::string& memberships,
                                         const std::string& mount) {
  std::vector<ControlGroup> groups;
  std::ifstream file(memberships);
  // "hierarchy:controllers:/group"; in version 2 the controllers are empty.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_1 = ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
    if (!controllers.empty() && !version_1) continue;
    std::string root = mount;
    if (version_1) root.append("/").append(controllers);
    std::string group = line.substr(second + 1);
    while (group.size() > 1) {
      groups.push_back({root + group, version_1});
      const std::size_t slash = group.rfind('/');
      group.resize(slash == std::string::npos ? 0 : slash);
    }
    groups.push_back({root, version_1});
  }
  return groups;
}

}  // namespace lockstep
