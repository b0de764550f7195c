#include "base/host.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <array>
#include <cerrno>

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

}  // namespace lockstep
