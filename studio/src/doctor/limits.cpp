#include <fmt/format.h>
#include <sys/resource.h>

#include <string>

#include "doctor/checks.h"
#include "doctor/text_files.h"

namespace lockstep::doctor {
namespace {

using Resource = decltype(RLIMIT_NOFILE);

std::string text_of(rlim_t value, rlim_t unit) {
  return value == RLIM_INFINITY ? "no limit" : fmt::format("{}", value / unit);
}

// A limit that should be at least `wanted`; below `needed` nothing works.
Finding check(const char* topic, Resource resource, rlim_t needed, rlim_t wanted, rlim_t unit, const char* what,
              const char* advice) {
  rlimit limit{};
  getrlimit(resource, &limit);
  const std::string text =
      fmt::format("{}: {} (at most {})", what, text_of(limit.rlim_cur, unit), text_of(limit.rlim_max, unit));
  if (limit.rlim_cur < needed) return problem(topic, text, advice);
  if (limit.rlim_cur < wanted) return warning(topic, text, advice);
  return ok(topic, text);
}

}  // namespace

Findings check_limits(const std::string& root) {
  Findings findings{
      check("files", RLIMIT_NOFILE, 256, 1024, 1, "open files",
            "a rank needs two for each other rank of the machine: ulimit -n 65536"),
      check("processes", RLIMIT_NPROC, 64, 512, 1, "processes and threads of this user", "ulimit -u 4096"),
      check("locked", RLIMIT_MEMLOCK, 0, 8 << 20, 1024, "locked memory in KiB",
            "RDMA between machines needs it: ulimit -l unlimited (/etc/security/limits.conf)"),
      check("file size", RLIMIT_FSIZE, 2 << 20, 1 << 30, 1024, "size of a file in KiB",
            "shared memory counts as files: ulimit -f unlimited"),
      check("addresses", RLIMIT_AS, rlim_t(1) << 30U, rlim_t(64) << 30U, 1 << 20, "address space in MiB",
            "ulimit -v unlimited"),
  };
  const std::string noexec = first_line(root + "/proc/sys/vm/memfd_noexec");
  if (noexec == "2") {
    findings.push_back(problem("memfd", "vm.memfd_noexec is 2: the launcher cannot start its supervisor",
                               "as root: sysctl vm.memfd_noexec=1"));
  }
  return findings;
}

}  // namespace lockstep::doctor
