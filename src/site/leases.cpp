#include "site/leases.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/printable.h"
#include "site/processes.h"

namespace lockstep::site {
namespace {

// Opens the file, which may belong to another user: a reader may lock it. Never O_CREAT on a file that is there: the
// system refuses that for files of others in folders with the sticky bit.
Result<Fd> open_or_make(const std::filesystem::path& path) {
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  for (int attempt = 0; attempt < 100; ++attempt) {
    Fd fd(open(path.c_str(), kFlags));
    if (!fd.valid() && errno == ENOENT) {
      fd.reset(open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0644));
      // Others must be able to open it, whatever the umask.
      if (fd.valid()) fchmod(fd.get(), 0644);
    }
    if (fd.valid()) return fd;
    if (errno != EEXIST && errno != ENOENT) break;
  }
  return Status::from_errno(fmt::format("cannot open {} for a lease", printable(path.native())), errno);
}

// Whether the open file is still the one with this name: its last holder may have removed it.
bool has_name(int fd, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(fd, &opened) == 0 && lstat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

bool is_shared(const char* folder) {
  struct stat info {};
  return stat(folder, &info) == 0 && S_ISDIR(info.st_mode) && (info.st_mode & 01777) == 01777;
}

}  // namespace

Lease::~Lease() {
  // Still locked: whoever opens the file now sees that its name is gone and makes a new one.
  if (fd_.valid()) unlink(path_.c_str());
}

Result<LeaseFolder> LeaseFolder::find(const Environment& environment) {
  if (const auto given = environment.get("LOCKSTEP_LEASES")) return LeaseFolder(*given);
  for (const char* folder : {"/run/lock", "/tmp"}) {
    if (is_shared(folder)) return LeaseFolder(folder);
  }
  return Status(ErrorCode::kUnavailable,
                "there is no folder for the leases of GPUs: neither /run/lock nor /tmp is open to all users with the "
                "sticky bit set; set LOCKSTEP_LEASES to a folder that all jobs of this machine share");
}

std::filesystem::path LeaseFolder::file_of(std::string_view name) const {
  std::string file = fmt::format("lockstep-lease-{}", name);
  for (char& c : file) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
  }
  return path_ / file;
}

Result<std::optional<Lease>> LeaseFolder::try_take(std::string_view name) const {
  const std::filesystem::path path = file_of(name);
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(Fd fd, open_or_make(path));
    struct stat info {};
    if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
      return Status(ErrorCode::kCorrupt,
                    fmt::format("{} is no regular file, so it cannot be a lease; remove it", printable(path.native())));
    }
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::optional<Lease>();
      return Status::from_errno(fmt::format("cannot lock {}", printable(path.native())), errno);
    }
    if (has_name(fd.get(), path)) return std::optional<Lease>(Lease(std::move(fd), path));
  }
}

Result<Lease> LeaseFolder::take(std::string_view name, Deadline deadline) const {
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::optional<Lease> lease, try_take(name));
    if (lease) return std::move(*lease);
    if (deadline.expired()) {
      return Status(ErrorCode::kTimeout, fmt::format("{} holds {} and does not release it", holder_of(name),
                                                     printable(file_of(name).native())));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string LeaseFolder::holder_of(std::string_view name) const {
  struct stat info {};
  if (lstat(file_of(name).c_str(), &info) != 0) return "another process";
  // "1: FLOCK  ADVISORY  WRITE 4711 08:01:131074 0 EOF"
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, mode, place;
    int pid = 0;
    if (!(words >> number >> kind >> advisory >> mode >> pid >> place) || kind != "FLOCK") continue;
    const std::size_t colon = place.rfind(':');
    if (colon == std::string::npos || place.substr(colon + 1) != std::to_string(info.st_ino)) continue;
    if (pid > 0) return describe_process(pid);
  }
  return "another process";
}

}  // namespace lockstep::site
