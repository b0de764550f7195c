#include "support/full_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "support/needs_root.h"

namespace lockstep::test {
namespace {

void set_size(int context, std::size_t bytes, fsconfig_command command) {
  const std::string size = std::to_string(bytes);
  needs_root(fsconfig(context, FSCONFIG_SET_STRING, "size", size.c_str(), 0), "fsconfig size");
  needs_root(fsconfig(context, command, nullptr, nullptr, 0), "fsconfig");
}

}  // namespace

SmallDisk::SmallDisk(std::size_t bytes) {
  const Fd context(needs_root(fsopen("tmpfs", FSOPEN_CLOEXEC), "fsopen"));
  set_size(context.get(), bytes, FSCONFIG_CMD_CREATE);
  mount_.reset(needs_root(fsmount(context.get(), FSMOUNT_CLOEXEC, 0), "fsmount"));
}

std::string SmallDisk::path(const std::string& name) const {
  return fmt::format("/proc/{}/fd/{}/{}", getpid(), mount_.get(), name);
}

void SmallDisk::resize(std::size_t bytes) const {
  const Fd context(needs_root(fspick(mount_.get(), "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC), "fspick"));
  set_size(context.get(), bytes, FSCONFIG_CMD_RECONFIGURE);
}

void SmallDisk::fill() const {
  const Fd file(open(path("fill").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::vector<char> page(4096);
  while (write(file.get(), page.data(), page.size()) > 0) {
  }
}

}  // namespace lockstep::test
