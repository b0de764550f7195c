#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "base/number_text.h"
#include "base/printable.h"
#include "base/random.h"
#include "site/devices.h"
#include "site/processes.h"

namespace lockstep::site {
namespace {

constexpr const char* kFolderName = "lockstep-leases-";

// A folder that this user alone can write to.
bool is_own(const std::filesystem::path& folder) {
  struct stat info {};
  return lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// The inodes of files that are locked, with the process that has locked each.
std::map<ino_t, int> locked_files() {
  std::map<ino_t, int> locked;
  // "1: FLOCK  ADVISORY  WRITE 4711 08:01:131074 0 EOF"
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, mode, place;
    int pid = 0;
    if (!(words >> number >> kind >> advisory >> mode >> pid >> place) || kind != "FLOCK") continue;
    const auto inode = number_from_text<ino_t>(std::string_view(place).substr(place.rfind(':') + 1));
    if (inode) locked[*inode] = pid;
  }
  return locked;
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
  if (!fd_.valid()) return;
  unlink(path_.c_str());
  rmdir(path_.parent_path().c_str());  // unless it has other leases
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

std::string LeaseFolder::file_of(std::string_view name) {
  std::string file = fmt::format("lockstep-lease-{}", name);
  for (char& c : file) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
  }
  return file;
}

std::set<std::filesystem::path> LeaseFolder::folders() const {
  std::set<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    if (entry.path().filename().native().starts_with(kFolderName)) found.insert(entry.path());
  }
  return found;
}

// Another user may have taken the common name: then one that cannot be guessed. Made first, then looked for, so that
// several jobs of this user choose the same.
Result<std::filesystem::path> LeaseFolder::own_folder() const {
  std::string name = fmt::format("{}{}", kFolderName, geteuid());
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::set<std::filesystem::path> all = folders();
    const auto own = std::find_if(all.begin(), all.end(), is_own);
    if (own != all.end()) return *own;
    const std::filesystem::path made = path_ / name;
    if (mkdir(made.c_str(), 0755) == 0) {
      chmod(made.c_str(), 0755);  // others must see what is locked, whatever the umask
    } else if (errno != EEXIST) {
      return Status::from_errno(fmt::format("cannot make {} for leases", printable(made.native())), errno);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string random, random_digits(8));
    name = fmt::format("{}{}-{}", kFolderName, geteuid(), random);
  }
  return Status(ErrorCode::kUnavailable,
                fmt::format("cannot make a folder for leases in {}", printable(path_.native())));
}

int LeaseFolder::holder_elsewhere(std::string_view name, const std::filesystem::path& own) const {
  const std::map<ino_t, int> locked = locked_files();
  for (const std::filesystem::path& folder : folders()) {
    struct stat owner {};
    struct stat file {};
    if (folder == own || lstat(folder.c_str(), &owner) != 0 || !S_ISDIR(owner.st_mode)) continue;
    if (lstat((folder / file_of(name)).c_str(), &file) != 0 || file.st_uid != owner.st_uid) continue;
    if (const auto found = locked.find(file.st_ino); found != locked.end()) return found->second;
  }
  return 0;
}

Result<std::optional<Lease>> LeaseFolder::lock_own(std::string_view name) const {
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::filesystem::path folder, own_folder());
    const std::filesystem::path path = folder / file_of(name);
    Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!fd.valid() && errno == ENOENT) continue;  // the last holder of a lease has removed the folder
    if (!fd.valid())
      return Status::from_errno(fmt::format("cannot open {} for a lease", printable(path.native())), errno);
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

Result<std::optional<Lease>> LeaseFolder::try_take(std::string_view name) const {
  LOCKSTEP_ASSIGN_OR_RETURN(std::optional<Lease> lease, lock_own(name));
  // Not before: of two users who do this at once, at least one sees the other.
  if (lease && holder_elsewhere(name, lease->folder()) != 0) return std::optional<Lease>();
  return lease;
}

Result<Lease> LeaseFolder::take(std::string_view name, Deadline deadline) const {
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::optional<Lease> lease, lock_own(name));
    if (lease) return std::move(*lease);
    if (deadline.expired()) {
      return Status(ErrorCode::kTimeout,
                    fmt::format("{} holds {} and does not release it", holder_of(name), printable(file_of(name))));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string LeaseFolder::holder_of(std::string_view name) const {
  const int pid = holder_elsewhere(name, {});
  return pid > 0 ? describe_process(pid) : "another process";
}

}  // namespace lockstep::site
