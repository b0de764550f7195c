#include "site/processes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pwd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/number_text.h"
#include "base/printable.h"

namespace lockstep::site {
namespace {

std::vector<std::string> zero_ended(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> texts;
  for (std::string text; std::getline(file, text, '\0');) texts.push_back(text);
  return texts;
}

double since_boot() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

std::optional<Process> find_process(int pid) {
  const std::string folder = fmt::format("/proc/{}", pid);
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) return std::nullopt;
  std::ifstream file(folder + "/stat");
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The name is in brackets and may hold anything, brackets too.
  const std::size_t open = line.find('(');
  const std::size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  Process process;
  process.pid = pid;
  process.user = info.st_uid;
  process.name = line.substr(open + 1, close - open - 1);
  std::istringstream rest(line.substr(close + 1));
  std::array<std::uint64_t, 19> skipped{};  // the fields 5 to 23 of proc(5)
  rest >> process.state >> process.parent;
  std::string word;
  for (std::uint64_t& field : skipped) {
    if (!(rest >> word)) return std::nullopt;
    std::from_chars(word.data(), word.data() + word.size(), field);
  }
  std::uint64_t pages = 0;
  rest >> pages;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  process.cpu_seconds = static_cast<double>(skipped[9] + skipped[10]) / ticks;
  process.start = skipped[17];
  process.age_seconds = std::max(0.0, since_boot() - static_cast<double>(process.start) / ticks);
  process.memory_bytes = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGE_SIZE));
  return process;
}

std::vector<Process> all_processes() {
  std::vector<Process> processes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().native();
    const std::optional<int> pid = number_from_text<int>(name);
    if (!pid) continue;
    if (auto process = find_process(*pid)) processes.push_back(std::move(*process));
  }
  return processes;
}

std::vector<std::string> arguments_of(int pid) {
  return zero_ended(fmt::format("/proc/{}/cmdline", pid));
}

std::map<std::string, std::string> environment_of(int pid) {
  std::map<std::string, std::string> variables;
  for (const std::string& entry : zero_ended(fmt::format("/proc/{}/environ", pid))) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return variables;
}

std::string user_name(uid_t user) {
  std::array<char, 4096> buffer{};
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    return printable(found->pw_name);
  }
  return fmt::format("user {}", user);
}

std::string describe_process(int pid) {
  constexpr std::size_t kMost = 100;
  const std::optional<Process> process = find_process(pid);
  if (!process) return fmt::format("process {}", pid);
  std::string command = fmt::format("{}", fmt::join(arguments_of(pid), " "));
  if (command.empty()) command = process->name;
  if (command.size() > kMost) command = command.substr(0, kMost) + "...";
  return fmt::format("process {} of {} ({})", pid, user_name(process->user), printable(command));
}

}  // namespace lockstep::site
