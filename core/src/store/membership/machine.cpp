#include "store/membership/machine.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "base/host.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kUnknown = "no-boot-id";
constexpr std::string_view kNobody = "nobody";
constexpr std::size_t kBootIdBytes = 36;

struct Parts {
  std::string_view boot, network, user;
};

// Nothing for a word that somebody chose.
std::optional<Parts> parts_of(std::string_view word) {
  const std::size_t first = word.find(':');
  const std::size_t second = first == std::string_view::npos ? first : word.find(':', first + 1);
  if (second == std::string_view::npos || first != kBootIdBytes) return std::nullopt;
  return Parts{word.substr(0, first), word.substr(first + 1, second - first - 1), word.substr(second + 1)};
}

}  // namespace

std::optional<std::uint64_t> outside_user(const std::string& uid_map, std::uint64_t user) {
  std::istringstream lines(uid_map);
  std::uint64_t inside = 0, outside = 0, count = 0;
  while (lines >> inside >> outside >> count) {
    if (user >= inside && user - inside < count) return outside + (user - inside);
  }
  return std::nullopt;
}

Result<MachineFacts> machine_facts() {
  MachineFacts facts;
  LOCKSTEP_ASSIGN_OR_RETURN(facts.boot, boot_id());
  struct stat network {};
  if (stat("/proc/self/ns/net", &network) == 0) facts.network = network.st_ino;
  std::ifstream map("/proc/self/uid_map");
  const std::string text((std::istreambuf_iterator<char>(map)), std::istreambuf_iterator<char>());
  // Kernels without user namespaces have no such file.
  facts.user = map.is_open() ? outside_user(text, geteuid()) : std::optional<std::uint64_t>(geteuid());
  return facts;
}

std::string machine_word(const MachineFacts& facts, const std::string& own) {
  if (facts.boot.size() != kBootIdBytes || facts.network == 0) return fmt::format("{}-{}", kUnknown, own);
  if (facts.user) return fmt::format("{}:{}:{}", facts.boot, facts.network, *facts.user);
  return fmt::format("{}:{}:{}-{}", facts.boot, facts.network, kNobody, own);
}

std::string why_apart(std::string_view word, std::string_view other) {
  if (word == other) return {};
  if (word.starts_with(kUnknown) || other.starts_with(kUnknown)) {
    return "one of them cannot tell on which machine it runs, because /proc is not mounted there (or hides "
           "sys/kernel/random/boot_id)";
  }
  const auto left = parts_of(word);
  const auto right = parts_of(other);
  if (!left || !right || left->boot != right->boot) return {};
  if (left->network != right->network) {
    return "they have different networks (containers or pods); containers of one pod share memory, and so do those "
           "that use the machine's network (docker run --network host, hostNetwork: true)";
  }
  if (left->user.starts_with(kNobody) || right->user.starts_with(kNobody))
    return "one of them runs as a user that its user namespace does not know";
  return fmt::format("they run as different users ({} and {}), who are not given one another's memory", left->user,
                     right->user);
}

}  // namespace lockstep::comm
