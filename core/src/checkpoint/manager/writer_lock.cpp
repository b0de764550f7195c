#include "writer_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "base/host.h"
#include "base/printable.h"
#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kName = ".writer";
constexpr auto kRetry = std::chrono::milliseconds(50);
// For a process of this machine, which may just be ending.
constexpr auto kShortPatience = std::chrono::milliseconds(500);

// The locks of this process, by device and inode of the folder, which may have several names. Never destroyed: locks
// may end while the program exits.
struct Held {
  Mutex mutex;
  std::map<SaveTurn::Folder, std::weak_ptr<WriterLock>> locks LOCKSTEP_GUARDED_BY(mutex);
};
Held& held() {
  static constinit OfProcess<Held> all;
  return all.get();
}

// The last turn of each folder, by the folder's path: a save goes on while its folder or its lock is replaced, and the
// saves under the new lock wait for it too. A fork does not wait for the saves of its parent.
struct LastTurns {
  Mutex mutex;
  std::map<fs::path, std::shared_future<void>> by_folder LOCKSTEP_GUARDED_BY(mutex);
};
LastTurns& last_turns() {
  static constinit OfProcess<LastTurns> all;
  return all.get();
}

std::string boot_id_or_nothing() {
  const Result<std::string> id = boot_id();
  return id.ok() ? id.value() : "";
}

struct Holder {
  std::string process;
  std::string host;
  std::string boot_id;

  std::string text() const { return host.empty() ? "another process" : fmt::format("process {} on {}", process, host); }
  // Two machines may have one name: a pod's successor on another node has that of the pod.
  bool is_elsewhere() const {
    const std::string mine = boot_id_or_nothing();
    if (!boot_id.empty() && !mine.empty()) return boot_id != mine;
    return !host.empty() && host != host_name();
  }
};

// "PID HOST BOOT_ID\n", written by the holder just after it has got the lock. Without a boot id where there is none.
Holder holder_of(int fd) {
  std::array<char, 512> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  const std::string line(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t end = line.find('\n');
  if (end == std::string::npos) return {};
  std::istringstream words(line.substr(0, end));
  Holder holder;
  if (!(words >> holder.process >> holder.host)) return {};
  words >> holder.boot_id;
  return {printable(holder.process), printable(holder.host), holder.boot_id};
}

void write_holder(int fd) {
  const std::string line = fmt::format("{} {} {}\n", ::getpid(), host_name(), boot_id_or_nothing());
  // On a full disk the lock has no name.
  if (::ftruncate(fd, 0) == 0) static_cast<void>(::pwrite(fd, line.data(), line.size(), 0) == 0);
}

enum class IsAt { kYes, kNo, kUnknown };

// Whether the file is still the one under this name: an earlier holder may have removed it. kUnknown while a file
// server does not answer.
IsAt is_at(const fs::path& path, int fd) {
  struct stat open {};
  struct stat named {};
  if (::fstat(fd, &open) != 0) return IsAt::kUnknown;
  if (::stat(path.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR ? IsAt::kNo : IsAt::kUnknown;
  return open.st_dev == named.st_dev && open.st_ino == named.st_ino ? IsAt::kYes : IsAt::kNo;
}

enum class Taken { kYes, kNo, kUnsupported };

Taken try_lock(int fd) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &whole) == 0) return Taken::kYes;
  return errno == EAGAIN || errno == EACCES ? Taken::kNo : Taken::kUnsupported;
}

Status in_use(const fs::path& path, const Holder& holder) {
  return {ErrorCode::kUnavailable,
          fmt::format("{}: {} is writing checkpoints to this folder. Give each training a folder of its own, or wait "
                      "until the other one has ended",
                      printable(path.parent_path().native()), holder.text())};
}

// The open and locked file.
Result<Fd> lock_file(const fs::path& path, std::chrono::milliseconds patience) {
  const auto begin = Clock::now();
  bool said = false;
  for (;;) {
    // Not through a link, which could lead to anybody's file.
    Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644));
    if (!fd.valid()) return Status::from_errno(fmt::format("{}: cannot open", printable(path.native())), errno);
    fd.keep_from_forks();
    const Taken taken = try_lock(fd.get());
    if (taken == Taken::kUnsupported) {
      log::warning(fmt::format("{}: this file system has no locks, so nothing keeps two trainings from writing there",
                               printable(path.parent_path().native())));
      return fd;
    }
    if (taken == Taken::kYes) {
      if (is_at(path, fd.get()) == IsAt::kNo) continue;
      write_holder(fd.get());
      return fd;
    }
    const Holder holder = holder_of(fd.get());
    const auto wait = holder.is_elsewhere() ? patience : std::min<std::chrono::milliseconds>(patience, kShortPatience);
    if (Clock::now() - begin >= wait) return in_use(path, holder);
    if (holder.is_elsewhere() && !std::exchange(said, true)) {
      log::info(fmt::format("{}: waiting up to {} s for {}, which writes checkpoints there",
                            printable(path.parent_path().native()),
                            std::chrono::duration_cast<std::chrono::seconds>(patience).count(), holder.text()));
    }
    std::this_thread::sleep_for(kRetry);
  }
}

// A link may lead elsewhere when the lock ends. But not every folder has a path without links: a mount that is in no
// tree is known by a descriptor in /proc alone.
fs::path real_path(const fs::path& folder, const struct stat& about) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  struct stat found {};
  const bool is_same =
      !error && ::stat(real.c_str(), &found) == 0 && found.st_dev == about.st_dev && found.st_ino == about.st_ino;
  return is_same ? real : fs::absolute(folder, error);
}

}  // namespace

Result<std::shared_ptr<WriterLock>> WriterLock::take(const fs::path& folder, std::chrono::milliseconds patience) {
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0) return Status::from_errno(printable(folder.native()), errno);
  const fs::path real = real_path(folder, about);
  MutexLock lock(held().mutex);
  std::weak_ptr<WriterLock>& known = held().locks[{about.st_dev, about.st_ino}];
  std::shared_ptr<WriterLock> mine = known.lock();
  if (mine != nullptr && mine->is_held(real)) return mine;
  const fs::path path = real / kName;
  LOCKSTEP_ASSIGN_OR_RETURN(Fd fd, lock_file(path, patience));
  mine.reset(new WriterLock(path, {about.st_dev, about.st_ino}, std::move(fd)));
  known = mine;
  return mine;
}

WriterLock::~WriterLock() {
  // While it is locked: whoever opened it before sees afterwards that its file has no name any more.
  if (origin_.is_this_process() && is_at(path_, fd_.get()) == IsAt::kYes) ::unlink(path_.c_str());
}

bool WriterLock::is_held(const fs::path& folder) const {
  return origin_.is_this_process() && is_at(folder / kName, fd_.get()) != IsAt::kNo;
}

bool SaveTurn::is_in(const fs::path& folder) const {
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0) return errno != ENOENT && errno != ENOTDIR;
  return folder_ == Folder(about.st_dev, about.st_ino);
}

std::shared_ptr<const SaveTurn> WriterLock::next_turn() {
  const MutexLock lock(last_turns().mutex);
  std::shared_future<void>& last = last_turns().by_folder[path_.parent_path()];
  const auto turn = std::make_shared<SaveTurn>(last, folder_);
  last = turn->ended_.get_future();
  return turn;
}

}  // namespace lockstep::checkpoint
