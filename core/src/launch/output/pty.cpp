#include "launch/output/pty.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace lockstep::launch {
namespace {

constexpr int kFlags = O_RDWR | O_NOCTTY | O_CLOEXEC;
constexpr winsize kUsualSize{24, 80, 0, 0};

Status failure(const char* call) {
  return Status::from_errno(std::string("no pseudo-terminal can be made (") + call + ")", errno);
}

}  // namespace

Result<Pty> open_pty() {
  Pty pty;
  pty.reader.reset(posix_openpt(kFlags));
  if (!pty.reader.valid()) return failure("posix_openpt");
  if (unlockpt(pty.reader.get()) != 0) return failure("unlockpt");
  // Not by its name: /dev/pts may be that of another mount namespace.
  pty.writer.reset(ioctl(pty.reader.get(), TIOCGPTPEER, kFlags));
  if (!pty.writer.valid()) return failure("TIOCGPTPEER");
  termios raw{};
  if (tcgetattr(pty.writer.get(), &raw) != 0) return failure("tcgetattr");
  cfmakeraw(&raw);
  if (tcsetattr(pty.writer.get(), TCSANOW, &raw) != 0) return failure("tcsetattr");
  if (ioctl(pty.writer.get(), TIOCSWINSZ, &kUsualSize) != 0) return failure("TIOCSWINSZ");
  return pty;
}

}  // namespace lockstep::launch
