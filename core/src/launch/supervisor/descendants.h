// Kills all descendants of a process that is their subreaper. Uses system calls and the C library only, because the
// supervisor has nothing else.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace lockstep::launch::supervisor {

inline std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

inline pid_t parent_of(const char* pid_text) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%.20s/stat", pid_text);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char text[512];
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return -1;
  text[size] = '\0';
  // The text is "pid (any name) state ppid". The name may hold spaces and brackets, so search for the last bracket.
  const char* after_name = strrchr(text, ')');
  return after_name == nullptr || strlen(after_name) < 5 ? -1 : static_cast<pid_t>(atoi(after_name + 4));
}

// Whether /proc shows this process's own PID namespace. It may be another's, or /proc may be missing.
inline bool proc_is_ours() {
  char text[32];
  const ssize_t size = readlink("/proc/self", text, sizeof text - 1);
  if (size <= 0) return false;
  text[size] = '\0';
  return atoi(text) == getpid();
}

// Calls found(pid) for each child that /proc shows. Returns their number.
template <typename Found>
int for_each_child_in_proc(Found found) {
  DIR* proc = proc_is_ours() ? opendir("/proc") : nullptr;
  if (proc == nullptr) return 0;
  const pid_t self = getpid();
  int count = 0;
  while (const dirent* entry = readdir(proc)) {
    if (isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0 || parent_of(entry->d_name) != self) continue;
    ++count;
    found(static_cast<pid_t>(atoi(entry->d_name)));
  }
  closedir(proc);
  return count;
}

inline bool is_child(pid_t pid) {
  siginfo_t info;
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// Calls found(pid) for each child, also for dead ones that were not reaped. When /proc shows none (it may hide
// processes), this asks the kernel about every possible number, which takes up to a second.
template <typename Found>
void for_each_child(Found found) {
  if (for_each_child_in_proc(found) > 0) return;
  constexpr pid_t kLargest = 4 << 20;
  for (pid_t pid = 1; pid <= kLargest; ++pid) {
    if (is_child(pid)) found(pid);
  }
}

// Sends SIGKILL to every direct child. Returns the number of children that it could signal.
inline int kill_children() {
  int signalled = 0;
  for_each_child([&](pid_t pid) { signalled += kill(pid, SIGKILL) == 0 ? 1 : 0; });
  return signalled;
}

// The next child that has exited, as waitpid() returns it; 0: none did by `deadline_ns` (negative: no deadline).
inline pid_t wait_for_child(int& status, std::int64_t deadline_ns) {
  if (deadline_ns < 0) return waitpid(-1, &status, 0);
  for (timespec pause{0, 50'000};; pause.tv_nsec = pause.tv_nsec < 10'000'000 ? 2 * pause.tv_nsec : pause.tv_nsec) {
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid != 0 || monotonic_ns() >= deadline_ns) return pid;
    nanosleep(&pause, nullptr);
  }
}

// Sends SIGKILL to all children until there are none. Calls `note(pid, status)` for each that is reaped. The children
// of a process that dies become ours before we can reap it, so true means that no descendant is left. False: we may not
// signal those that are left (a setuid program), or they have not died by the deadline (waiting for a disk or a
// device).
template <typename Note>
bool kill_descendants(std::int64_t deadline_ns, Note note) {
  int status = 0;
  for (;;) {
    const pid_t ready = waitpid(-1, &status, WNOHANG);
    if (ready > 0) {
      note(ready, status);
      continue;
    }
    if (ready < 0 && errno == ECHILD) return true;
    if (kill_children() == 0) return waitpid(-1, &status, WNOHANG) < 0;
    const pid_t pid = wait_for_child(status, deadline_ns);
    if (pid > 0) note(pid, status);
    if (pid == 0) return false;
  }
}

}  // namespace lockstep::launch::supervisor
