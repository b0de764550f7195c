#include "launch/job/spawn_child.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "lockstep/base/environment.h"

namespace lockstep::launch {
namespace {

constexpr char kStarted = 'S';
constexpr char kFinished = 'F';
constexpr char kError = 'E';

std::unique_ptr<SpawnChild> find_role() {
  const auto text = Environment::of_process().get(kSpawnVariable);
  if (!text) return nullptr;
  int call = 0;
  int fd = -1;
  unsigned long long inode = 0;
  struct stat info {};
  const bool ours = std::sscanf(text->c_str(), "%d:%d:%llu", &call, &fd, &inode) == 3 && fstat(fd, &info) == 0 &&
                    S_ISFIFO(info.st_mode) && info.st_ino == inode;
  unsetenv(kSpawnVariable);
  if (!ours) return nullptr;
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  auto role = std::make_unique<SpawnChild>();
  role->call = call;
  role->report = Fd(fd);
  role->report.keep_from_forks();  // a fork of the rank must not report
  return role;
}

void report(const SpawnChild& child, const std::string& bytes) {
  // Fits into the pipe, so it is written whole. If the parent is dead, this process is killed too.
  while (write(child.report.get(), bytes.data(), bytes.size()) < 0 && errno == EINTR) {
  }
}

void report_error(const SpawnChild& child, std::string_view text) {
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::string bytes(1, kError);
  bytes.append(reinterpret_cast<const char*>(&now), sizeof now);
  bytes.append(text.substr(0, kMaxReportText));
  report(child, bytes);
}

std::string read_all(int fd) {
  std::string bytes;
  char buffer[4096];
  for (;;) {
    const ssize_t size = read(fd, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return bytes;
    bytes.append(buffer, static_cast<std::size_t>(size));
  }
}

}  // namespace

SpawnChild* spawn_child() {
  static const std::unique_ptr<SpawnChild> role = find_role();
  return role.get();
}

void run_spawn_child(SpawnChild& child, const std::function<void(int rank)>& fn) {
  child.running = true;
  // Ranks that write to the same file or pipe write whole lines there, and lose none when they abort.
  (void)setvbuf(stdout, nullptr, _IOLBF, 0);
  report(child, std::string(1, kStarted));
  try {
    fn(std::stoi(Environment::of_process().get("RANK").value_or("0")));
  } catch (const std::exception& error) {
    report_error(child, error.what());
    std::exit(EXIT_FAILURE);
  } catch (...) {
    report_error(child, "an exception that is not derived from std::exception");
    std::exit(EXIT_FAILURE);
  }
  report(child, std::string(1, kFinished));
  std::exit(EXIT_SUCCESS);
}

SpawnReport read_spawn_report(int pipe) {
  const std::string bytes = read_all(pipe);
  SpawnReport result;
  result.started = !bytes.empty() && bytes[0] == kStarted;
  if (bytes.size() < 2) return result;
  result.finished = bytes[1] == kFinished;
  if (bytes[1] == kError && bytes.size() >= 2 + sizeof result.error_ns) {
    std::memcpy(&result.error_ns, bytes.data() + 2, sizeof result.error_ns);
    result.error = bytes.substr(2 + sizeof result.error_ns);
  }
  return result;
}

}  // namespace lockstep::launch
