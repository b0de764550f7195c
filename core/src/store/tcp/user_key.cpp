#include "store/tcp/user_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/random.h"
#include "lockstep/base/fd.h"
#include "store/file/private_file.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kKeyDigits = 64;  // hexadecimal
constexpr mode_t kReadableByOthers = S_IRWXG | S_IRWXO;

// kNotFound: there is none yet.
Result<std::string> read_key(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return Status::from_errno(fmt::format("cannot read the user's key {}", path), errno);
  LOCKSTEP_RETURN_IF_ERROR(check_private(file.get(), path));
  struct stat info {};
  if (fstat(file.get(), &info) != 0 || (info.st_mode & kReadableByOthers) != 0) {
    return Status(ErrorCode::kPermission,
                  fmt::format("others may read the key in {} (mode {:03o}): remove it, and a new one is made", path,
                              info.st_mode & 0777));
  }
  std::string key(kKeyDigits, '\0');
  if (pread(file.get(), key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("{} holds no key of {} digits: remove it, and a new one is made", path, kKeyDigits));
  }
  return key;
}

Status make_folder(const std::filesystem::path& folder) {
  if (folder.has_parent_path() && folder.parent_path() != folder) {
    struct stat info {};
    if (stat(folder.c_str(), &info) == 0) return {};
    LOCKSTEP_RETURN_IF_ERROR(make_folder(folder.parent_path()));
  }
  if (mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return Status::from_errno(fmt::format("cannot make the folder {} for the user's key", folder.native()), errno);
}

Status write_whole(const std::string& path, const std::string& text) {
  const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return Status::from_errno(fmt::format("cannot make {}", path), errno);
  const ssize_t written = write(file.get(), text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size()) && fsync(file.get()) == 0) return {};
  return Status::from_errno(fmt::format("cannot write {}", path), written < 0 ? errno : ENOSPC);
}

// Writes the key under a unique name first. The process that first links its file to the common name has made the key.
Status make_key(const std::string& path) {
  LOCKSTEP_RETURN_IF_ERROR(make_folder(std::filesystem::path(path).parent_path()));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string key, random_digits(kKeyDigits / 2));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string unique, random_digits(8));
  const std::string draft = fmt::format("{}.{}", path, unique);
  Status made = write_whole(draft, key);
  if (made.ok() && link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST)
    made = Status::from_errno(fmt::format("cannot make {}", path), errno);
  unlink(draft.c_str());
  return made;
}

}  // namespace

std::string user_key_path(const Environment& environment) {
  if (const auto state = environment.get("XDG_STATE_HOME")) return *state + "/lockstep/key";
  if (const auto home = environment.get("HOME")) return *home + "/.local/state/lockstep/key";
  return {};
}

Result<std::string> user_key(const Environment& environment) {
  const std::string path = user_key_path(environment);
  if (path.empty()) return Status(ErrorCode::kNotFound, "neither XDG_STATE_HOME nor HOME says where the user's key is");
  auto key = read_key(path);
  if (key.status().code() != ErrorCode::kNotFound) return key;
  LOCKSTEP_RETURN_IF_ERROR(make_key(path));
  return read_key(path);
}

}  // namespace lockstep::comm
