#include "support/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "support/read_file.h"

namespace lockstep::test {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::vector<std::string> entries = added;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

bool wait_readable(int fd, std::chrono::seconds limit) {
  pollfd waited{fd, POLLIN, 0};
  return poll(&waited, 1, static_cast<int>(std::chrono::milliseconds(limit).count())) > 0;
}

}  // namespace

Process::Process(const std::vector<std::string>& command, const Settings& settings) {
  folder_ = (std::filesystem::temp_directory_path() / "lockstep_process_XXXXXX").string();
  if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("cannot make a scratch folder");
  int life[2];
  if (pipe2(life, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  life_line_.reset(life[0]);
  const Fd write_end(life[1]);

  std::vector<std::string> words = command;
  std::vector<std::string> variables = environment_with(settings.environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND;
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  const auto set_output = [&](int fd, int given, const std::string& file) {
    if (given >= 0) {
      posix_spawn_file_actions_adddup2(&actions, given, fd);
    } else {
      posix_spawn_file_actions_addopen(&actions, fd, file.c_str(), flags, 0600);
    }
  };
  set_output(1, settings.stdout_fd, folder_ + "/out");
  set_output(2, settings.stderr_fd, folder_ + "/err");
  posix_spawn_file_actions_adddup2(&actions, write_end.get(), write_end.get());
  const int error =
      posix_spawnp(&pid_, words[0].c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + command[0]);
}

Process::~Process() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Finished Process::finish(std::chrono::seconds limit) {
  const Fd pid_fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!wait_readable(pid_fd.get(), limit)) {
    ADD_FAILURE() << "process " << pid_ << " did not end within " << limit.count() << " s";
    kill(pid_, SIGKILL);
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  Finished result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(folder_ + "/out");
  result.err = read_file(folder_ + "/err");
  return result;
}

bool Process::ended() const {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
}

bool Process::wait_until_no_descendant(std::chrono::seconds limit) {
  return wait_readable(life_line_.get(), limit);
}

std::string Process::out_so_far() const {
  return read_file(folder_ + "/out");
}

std::string Process::err_so_far() const {
  return read_file(folder_ + "/err");
}

Finished run_program(const std::vector<std::string>& command) {
  return Process(command).finish();
}

bool takes_signal(pid_t pid, int signal) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto has = [&](const char* field, int one) {
    const std::size_t at = status.find(field);
    return at != std::string::npos && (std::stoull(status.substr(at + 7), nullptr, 16) >> (one - 1) & 1) != 0;
  };
  // While the C library starts a program or a thread, all signals are blocked; SIGSEGV at no other time.
  return has("SigCgt:", signal) || (has("SigBlk:", signal) && !has("SigBlk:", SIGSEGV));
}

bool is_stopped(pid_t pid) {
  const std::string line = read_file("/proc/" + std::to_string(pid) + "/stat");
  // "pid (any name) state ..."
  const std::size_t bracket = line.rfind(')');
  return bracket != std::string::npos && line.compare(bracket + 1, 2, " T") == 0;
}

}  // namespace lockstep::test
