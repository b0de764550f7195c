#include "launch/process/out_of_memory.h"

#include <fmt/format.h>

#include <fstream>
#include <optional>

#include "base/control_groups.h"

namespace lockstep::launch {
namespace {

// The number in the line "oom_kill 3".
std::optional<std::uint64_t> kills_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  for (std::uint64_t count = 0; file >> name >> count;) {
    if (name == "oom_kill") return count;
  }
  return std::nullopt;
}

}  // namespace

MemoryKills memory_kills(const std::string& memberships, const std::string& mount, const std::string& vmstat) {
  for (const ControlGroup& group : control_groups("memory", memberships, mount)) {
    const auto count = kills_in(group.folder + (group.version_1 ? "/memory.oom_control" : "/memory.events"));
    if (count) return {"control group " + group.folder, *count};
  }
  const auto count = kills_in(vmstat);
  return count ? MemoryKills{"machine", *count} : MemoryKills();
}

std::string lack_of_memory(const MemoryKills& before, const MemoryKills& now) {
  if (now.place != before.place || now.count <= before.count) return {};
  return fmt::format(
      "the kernel has ended {} process{} of this {} for lack of memory since the workers started: this one was "
      "probably "
      "among them; give the job more memory, or its workers less to hold",
      now.count - before.count, now.count - before.count == 1 ? "" : "es", now.place);
}

}  // namespace lockstep::launch
