#include "shm/peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "base/poll.h"
#include "lockstep/base/deadline.h"
#include "memory_file.h"
#include "shm/mapping.h"

namespace lockstep::comm {
namespace {

// An open-file-description lock: it belongs to one opening of the file, not to the process, and ends with it.
struct flock owner_lock() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

std::size_t size_of_file(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? static_cast<std::size_t>(info.st_size) : 0;
}

constexpr auto kLastMoments = std::chrono::milliseconds(200);  // of a process that is ending

bool has_ended(int process, Deadline deadline) {
  pollfd entry{process, POLLIN, 0};
  const auto ready = poll_until(std::span(&entry, 1), deadline);
  return ready.ok() && (entry.revents & POLLIN) != 0;
}

}  // namespace

Result<Fd> hold_owner_lock(int arena) {
  const std::string path = fmt::format("/proc/self/fd/{}", arena);
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid())
    return Status::from_errno(fmt::format("cannot open shared memory again, as {}; is /proc mounted?", path), errno);
  fd.keep_from_forks();
  struct flock lock = owner_lock();
  if (fcntl(fd.get(), F_OFD_SETLK, &lock) != 0) return Status::from_errno("cannot lock shared memory", errno);
  return fd;
}

Result<std::shared_ptr<ArenaView>> ArenaView::map(Fd arena, std::size_t first_bytes) {
  arena.keep_from_forks();
  LOCKSTEP_ASSIGN_OR_RETURN(auto first, Mapping::map(arena.get(), with_table(first_bytes)));
  return std::shared_ptr<ArenaView>(new ArenaView(std::move(arena), first_bytes, std::move(first)), LeakInForks());
}

ArenaView::~ArenaView() {
  for (std::size_t i = 0; i < further_.count(); ++i) munmap(further_[i].base, further_[i].end - further_[i].begin);
}

std::byte* ArenaView::at(std::size_t offset) const {
  if (offset < first_bytes_) return first_->base() + offset;
  const Segment* const segment = further_.with_offset(offset);
  return segment == nullptr ? nullptr : segment->base + (offset - segment->begin);
}

Status ArenaView::reach(std::size_t offset) {
  if (at(offset) != nullptr) return {};
  MutexLock lock(mutex_);
  return at(offset) != nullptr ? Status() : map_segment(offset);
}

Status ArenaView::map_segment(std::size_t offset) {
  const auto& table = *reinterpret_cast<const SegmentTable*>(first_->base() + first_bytes_);
  const std::uint64_t count = std::min<std::uint64_t>(table.count.load(std::memory_order_acquire), Segments::kMost - 1);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto [begin, end] = table.entries[i];
    if (offset < begin || offset >= end || end > size_of_file(fd_.get()) || further_.count() == Segments::kMost)
      continue;
    auto base = map_shared(fd_.get(), begin, end - begin);
    if (!base.ok()) return base.status().with_context("a segment of another rank's shared memory");
    further_.add({begin, end, base.value()});
    return {};
  }
  return {ErrorCode::kCorrupt, fmt::format("another rank's shared memory has nothing at offset {}", offset)};
}

bool ArenaView::owner_runs() const {
  struct flock lock = owner_lock();
  return fcntl(fd_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool Peer::is_gone() const {
  return (process->valid() && has_ended(process->get(), Deadline::after(std::chrono::nanoseconds(0)))) ||
         !arena->owner_runs();
}

// A dying process closes its descriptors before its pidfd shows the end, so wait a moment.
const char* Peer::how_gone() const {
  const bool ended = process->valid() && has_ended(process->get(), Deadline::after(kLastMoments));
  return ended ? "died" : "ended or replaced its program (exec)";
}

Result<Fd> open_own_process() {
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!process.valid())
    return Status::from_errno(
        "pidfd_open (needs Linux 5.3 or newer, and in a container a seccomp profile that allows it)", errno);
  return process;
}

bool is_process(int fd) {
  constexpr auto kPidfd = static_cast<idtype_t>(3);  // P_PIDFD, which older C libraries lack
  siginfo_t ignored{};
  return waitid(kPidfd, fd, &ignored, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != EBADF;
}

}  // namespace lockstep::comm
