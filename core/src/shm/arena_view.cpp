#include "shm/arena_view.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "segment_table.h"
#include "shm/map_shared.h"

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

}  // namespace lockstep::comm
