// Runs in every program with ranks, before its static objects are made: system calls and the C library only.
#include "launch/standby/hook.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// kStandbyNoteOwner, kStandbyNoteType and kStandbyProtocol, in the form of elf(5).
asm(".pushsection .note.lockstep.standby, \"a\", %note\n"
    ".balign 4\n"
    ".long 9\n"
    ".long 4\n"
    ".long 1\n"
    ".asciz \"Lockstep\"\n"
    ".balign 4\n"
    ".long 1\n"
    ".popsection\n");

namespace lockstep::launch {
namespace {

static_assert(kStandbyNoteType == 1 && kStandbyProtocol == 1 && sizeof kStandbyNoteOwner == 9);

// Nobody needs this process any more.
constexpr int kUnused = 1;

struct Release {
  char* texts = nullptr;
  std::size_t size = 0;
  std::array<int, 3> standard_fds{-1, -1, -1};
};

int standby_socket() {
  const char* text = std::getenv(kStandbyVariable);
  int fd = -1;
  unsigned long long inode = 0;
  struct stat info {};
  const bool ours = text != nullptr && std::sscanf(text, "%d:%llu", &fd, &inode) == 2 && fstat(fd, &info) == 0 &&
                    S_ISSOCK(info.st_mode) && info.st_ino == inode;
  return ours ? fd : -1;
}

// False: the launcher has closed its end.
bool receive(int socket, Release& release) {
  ssize_t size = -1;
  do {
    size = recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return false;
  release.size = static_cast<std::size_t>(size);
  release.texts = static_cast<char*>(std::malloc(release.size));
  if (release.texts == nullptr) return false;
  iovec bytes{release.texts, release.size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof release.standard_fds)> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != size) return false;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return false;
  if (header->cmsg_len != CMSG_LEN(sizeof release.standard_fds)) return false;
  std::memcpy(release.standard_fds.data(), CMSG_DATA(header), sizeof release.standard_fds);
  return release.texts[release.size - 1] == '\0';
}

// No longer the first process to end when memory runs out.
void restore_oom_score() {
  const char* const variable = std::getenv(kStandbyVariable);
  const char* const score = variable == nullptr ? nullptr : std::strrchr(variable, ':') + 1;
  const int file = score == nullptr ? -1 : open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  static_cast<void>(!write(file, score, std::strspn(score, "-0123456789")));
  close(file);
}

// /proc/PID/environ, which `lockstep ps` reads, shows the texts that the process was started with forever. So the
// variable's is cleared, and what has changed takes its place, as far as there is room.
void replace_standby(const Release& release) {
  char* const shown = std::getenv(kStandbyVariable);
  const std::size_t room = shown == nullptr ? 0 : std::strlen(shown);
  if (room > 0) std::memset(shown, 0, room);
  std::size_t end = 1;  // after an empty value
  for (const char* text = release.texts; text < release.texts + release.size; text += std::strlen(text) + 1) {
    const std::size_t size = std::strlen(text) + 1;
    if (std::strchr(text, '=') == nullptr || end + size > room) continue;
    std::memcpy(shown + end, text, size);
    end += size;
  }
  unsetenv(kStandbyVariable);
}

void apply(const Release& release) {
  for (int i = 0; i < 3; ++i) {
    const int fd = release.standard_fds[static_cast<std::size_t>(i)];
    if (dup2(fd, i) < 0) _exit(kUnused);
    if (fd > 2) close(fd);
  }
  restore_oom_score();
  replace_standby(release);
  for (char* text = release.texts; text < release.texts + release.size; text += std::strlen(text) + 1) {
    char* const equals = std::strchr(text, '=');
    if (equals == nullptr) {
      unsetenv(text);
      continue;
    }
    *equals = '\0';
    if (setenv(text, equals + 1, 1) != 0) _exit(kUnused);
    *equals = '=';  // for strlen
  }
}

void wait_before_main() {
  if (&lockstep_waits_on_standby_itself == nullptr) wait_on_standby();
}

// Before all static objects of the program, which may read the environment: with constructor(101), the first number
// that programs may use, those with the same number in files that are linked earlier would come first.
__attribute__((used, section(".init_array.00000"))) void (*run_before_main)() = &wait_before_main;

}  // namespace

void wait_on_standby() {
  const int socket = standby_socket();
  if (socket < 0) return;
  std::array<char, 16> name{};
  prctl(PR_GET_NAME, name.data());
  std::array<char, 16> waiting{};
  std::snprintf(waiting.data(), waiting.size(), "%s%.7s", kStandbyPrefix, name.data());
  prctl(PR_SET_NAME, waiting.data());
  Release release;
  if (!receive(socket, release)) _exit(kUnused);
  apply(release);
  std::free(release.texts);
  close(socket);
  prctl(PR_SET_NAME, name.data());
}

void link_standby_hook() {}

}  // namespace lockstep::launch
