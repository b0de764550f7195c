#include "store/file/private_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace lockstep::comm {
namespace {

constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

bool belongs_to_its_closed_folder(const struct stat& file, const std::string& path) {
  struct stat folder {};
  const std::string parent = std::filesystem::path(path).parent_path();
  return stat(parent.empty() ? "." : parent.c_str(), &folder) == 0 && folder.st_uid == file.st_uid &&
         (folder.st_mode & kWritableByOthers) == 0;
}

}  // namespace

Status check_private(int fd, const std::string& path) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return Status::from_errno(fmt::format("cannot stat {}", path), errno);
  if (!S_ISREG(info.st_mode)) return {ErrorCode::kInvalidArgument, fmt::format("{} is no regular file", path)};
  if (info.st_uid != geteuid() && !belongs_to_its_closed_folder(info, path)) {
    return {
        ErrorCode::kPermission,
        fmt::format("{} belongs to user {}, this process runs as user {}: another user may have put it there. Remove "
                    "it, or name a path in a folder of your own",
                    path, info.st_uid, geteuid())};
  }
  if ((info.st_mode & kWritableByOthers) == 0) return {};
  return {
      ErrorCode::kPermission,
      fmt::format("others may write to {} (mode {:03o}): they could change what the ranks say to one another. chmod "
                  "600 it, or name a path that does not exist yet",
                  path, info.st_mode & 0777)};
}

}  // namespace lockstep::comm
