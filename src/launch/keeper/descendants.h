// Ending all descendants of a process that is their subreaper. System calls and the C library only: the keeper has no
// more.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace lockstep::launch::keeper {

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
  // "pid (any name) state ppid": the name may hold spaces and brackets, so count from the last bracket.
  const char* after_name = strrchr(text, ')');
  return after_name == nullptr || strlen(after_name) < 5 ? -1 : static_cast<pid_t>(atoi(after_name + 4));
}

// SIGKILL to every direct child; answers how many could be reached.
inline int kill_children() {
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return 0;
  const pid_t self = getpid();
  int reached = 0;
  while (const dirent* entry = readdir(proc)) {
    if (isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0 || parent_of(entry->d_name) != self) continue;
    if (kill(static_cast<pid_t>(atoi(entry->d_name)), SIGKILL) == 0) ++reached;
  }
  closedir(proc);
  return reached;
}

// SIGKILL for all children until there are none; `note(pid, status)` is told of each that is reaped. The children of a
// process that dies become ours before we can reap it, so this ends only when no descendant is left, or none that we
// may signal (a setuid program).
template <typename Note>
void kill_descendants(Note note) {
  int status = 0;
  for (;;) {
    const pid_t ready = waitpid(-1, &status, WNOHANG);
    if (ready > 0) {
      note(ready, status);
      continue;
    }
    if (ready < 0 && errno == ECHILD) return;
    if (kill_children() == 0) return;
    const pid_t pid = waitpid(-1, &status, 0);
    if (pid > 0) note(pid, status);
  }
}

}  // namespace lockstep::launch::keeper
