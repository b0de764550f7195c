// Leases on what only one job should use, such as a GPU. A lease is a lock (flock) on a file in a folder of its user,
// which is in a folder that all users of the machine share. The kernel drops it with the process that holds it, however
// that process dies, so there is no stale lease. Other users see that the file is locked (/proc/locks), but cannot lock
// or remove it. Nobody is forced to ask for a lease: it keeps Lockstep's jobs apart.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::site {

// A lease that is held until it is destroyed. The file is removed then.
class Lease {
 public:
  Lease(Fd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Lease(Lease&& other) noexcept = default;
  Lease& operator=(Lease&& other) = delete;
  ~Lease();
  std::filesystem::path folder() const { return path_.parent_path(); }

 private:
  Fd fd_;
  std::filesystem::path path_;
};

class LeaseFolder {
 public:
  // $LOCKSTEP_LEASES if it is set; else /run/lock or /tmp, whichever is first open to all users with the sticky bit
  // set. So all users come to the same choice. kUnavailable: there is none.
  static Result<LeaseFolder> find(const Environment& environment);
  explicit LeaseFolder(std::filesystem::path path) : path_(std::move(path)) {}

  // No value: another process holds it, of any user. `name`: letters, digits and dashes; others become '_'.
  // kPermission, kIo, kCorrupt when something else has the file's name.
  Result<std::optional<Lease>> try_take(std::string_view name) const;
  // Waits for a lease that matters among this user's jobs only. kTimeout names the holder.
  Result<Lease> take(std::string_view name, Deadline deadline) const;
  // "process 4711 of alice (lockstep run ./train)"; "another process" when the system does not say.
  std::string holder_of(std::string_view name) const;

 private:
  static std::string file_of(std::string_view name);
  // The folders of all users.
  std::set<std::filesystem::path> folders() const;
  // This user's, which is made if there is none.
  Result<std::filesystem::path> own_folder() const;
  // No value: another job of this user has it.
  Result<std::optional<Lease>> lock_own(std::string_view name) const;
  // The process that has locked the file of this name in a folder other than `own`, by that folder's owner; 0: none.
  int holder_elsewhere(std::string_view name, const std::filesystem::path& own) const;

  std::filesystem::path path_;
};

}  // namespace lockstep::site
