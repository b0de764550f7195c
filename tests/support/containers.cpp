#include "support/containers.h"

#include <fmt/format.h>

namespace lockstep::test {
namespace {

using Words = std::vector<std::string>;

void append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// What root does inside before the user changes.
std::string preparation(const Container& container) {
  std::string script = "set -e; ";
  if (!container.shm.empty()) {
    const std::string size = container.shm == "0" ? "ro,size=4k" : "size=" + container.shm;
    script += fmt::format("mount -t tmpfs -o {} shm /dev/shm; ", size);
  }
  if (!container.cores.empty()) {
    const auto quota = static_cast<long>(std::stod(container.cores) * 100'000);
    script += fmt::format(
        "mount -t tmpfs groups /sys/fs/cgroup; echo {} 100000 > /sys/fs/cgroup/cpu.max; "
        "for cpu in cpu cpu,cpuacct cpuacct,cpu; do mkdir /sys/fs/cgroup/$cpu; "
        "echo {} > /sys/fs/cgroup/$cpu/cpu.cfs_quota_us; echo 100000 > /sys/fs/cgroup/$cpu/cpu.cfs_period_us; done; ",
        quota, quota);
  }
  if (!container.hosts.empty()) script += fmt::format("mount --bind {} /etc/hosts; ", container.hosts);
  if (container.read_only) script += "mount -o remount,bind,ro /; ";
  if (container.no_proc) script += "mount -t tmpfs -o ro none /proc; ";
  // The search for leaks stops the process with ptrace(), which a container forbids.
  script += "[ -z \"${ASAN_OPTIONS-}\" ] || export ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\"; ";
  return script + "exec \"$@\"";
}

Words as_user(Container::User user) {
  switch (user) {
    case Container::User::kSame: return {};
    case Container::User::kRootInside: return {"unshare", "--user", "--map-root-user"};
    case Container::User::kNumberInside: return {"unshare", "--user", "--map-user=1000", "--map-group=1000"};
    case Container::User::kNobody: return {"unshare", "--user"};
    case Container::User::kOther:
      return {"setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "unshare", "--user", "--map-root-user"};
  }
  return {};
}

}  // namespace

std::vector<std::string> inside(const Container& container, const std::vector<std::string>& command) {
  Words words{"setpriv", "--pdeathsig", "KILL", "unshare", "--mount"};
  if (container.ipc_and_name) append(words, {"--ipc", "--uts"});
  if (container.processes) append(words, {"--pid", "--fork", "--kill-child", "--mount-proc"});
  append(words, {"sh", "-c", preparation(container), "sh"});
  append(words, as_user(container.user));
  if (!container.filter.empty()) words.push_back(container.filter);
  append(words, command);
  return words;
}

}  // namespace lockstep::test
