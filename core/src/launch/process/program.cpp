#include "launch/process/program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace lockstep::launch {
namespace {

enum class FileState { kMissing, kDirectory, kNotExecutable, kExecutable };

FileState state_of(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileState::kMissing;
  if (S_ISDIR(info.st_mode)) return FileState::kDirectory;
  return access(path.c_str(), X_OK) == 0 ? FileState::kExecutable : FileState::kNotExecutable;
}

Status not_executable(const std::string& path) {
  return Status(ErrorCode::kPermission,
                fmt::format("'{0}' is not executable; for a program: chmod +x {0}; a Python script has a name that "
                            "ends in .py",
                            path));
}

}  // namespace

bool runs_in_python(ProgramKind kind, const std::string& program) {
  return kind == ProgramKind::kPythonModule || (kind == ProgramKind::kByName && program.ends_with(".py"));
}

std::vector<std::string> command_line(ProgramKind kind, const std::string& program,
                                      const std::vector<std::string>& arguments, const char* python) {
  std::vector<std::string> command;
  if (runs_in_python(kind, program)) command = {python == nullptr ? "python3" : python, "-u"};
  if (kind == ProgramKind::kPythonModule) command.push_back("-m");
  command.push_back(program);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

Result<std::string> find_executable(const std::string& name, std::string_view search_path) {
  if (name.find('/') != std::string::npos) {
    switch (state_of(name)) {
      case FileState::kExecutable: return name;
      case FileState::kNotExecutable: return not_executable(name);
      case FileState::kDirectory:
        return Status(ErrorCode::kInvalidArgument, fmt::format("'{}' is a folder, expected a program", name));
      case FileState::kMissing: break;
    }
    return Status(ErrorCode::kNotFound, fmt::format("there is no file '{}'", name));
  }
  for (std::size_t begin = 0; begin <= search_path.size();) {
    const std::size_t end = std::min(search_path.find(':', begin), search_path.size());
    const std::string folder(search_path.substr(begin, end - begin));
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (state_of(path) == FileState::kExecutable) return path;
    begin = end + 1;
  }
  // cron and ssh may have another PATH than the shell by which this program was found.
  if (auto self = own_program(); self.ok() && std::filesystem::path(*self).filename() == name) return self;
  const bool here = state_of("./" + name) != FileState::kMissing;
  return Status(ErrorCode::kNotFound,
                fmt::format("no program '{}' in the folders of PATH{}", name,
                            here ? fmt::format("; for the file in this folder write ./{}", name) : ""));
}

Result<std::string> own_program() {
  std::error_code error;
  std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return Status::from_errno("cannot read /proc/self/exe to start this program again", error.value());
  // `lockstep run --config` is a program of its own beside `lockstep`. Launchers on other nodes get its options without
  // the file.
  const std::filesystem::path self(path);
  if (self.filename() == "lockstep-config") path = (self.parent_path() / "lockstep").string();
  return path;
}

}  // namespace lockstep::launch
