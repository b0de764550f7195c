#include "base/host.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>

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

}  // namespace

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != 0 ? name.data() : "(unknown)";
}

Result<std::string> boot_id() {
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

}  // namespace lockstep
