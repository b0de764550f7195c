#include "lockstep/comm/transport/shared_arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "map_shared.h"
#include "memory_file.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
// From here on an allocation is touched at once, in one call, instead of by a page fault per 4 KiB later.
constexpr std::size_t kPopulateFrom = std::size_t{64} << 10;

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace

Result<std::shared_ptr<SharedArena>> SharedArena::create(const SharedArenaOptions& options) {
  const std::size_t wanted = options.reserve != 0 ? options.reserve : physical_memory();
  const std::size_t reserve = (wanted + kPage - 1) / kPage * kPage;
  LOCKSTEP_ASSIGN_OR_RETURN(Fd fd, make_memory_file("lockstep-arena", reserve));
  auto base = map_shared(fd.get(), reserve);
  if (!base.ok()) return base.status().with_context("is an address space limit set (ulimit -v)?");
  return std::shared_ptr<SharedArena>(new SharedArena(std::move(fd), base.value(), reserve, options.retain));
}

SharedArena::SharedArena(Fd fd, std::byte* base, std::size_t reserve, std::size_t retain)
    : fd_(std::move(fd)), base_(base), reserve_(reserve), retain_(retain), ranges_(reserve) {}

SharedArena::~SharedArena() {
  munmap(base_, reserve_);
}

Result<std::byte*> SharedArena::allocate(std::size_t bytes, [[maybe_unused]] Pages pages) {
  const std::size_t alignment = bytes >= kPage ? kPage : kLine;
  std::optional<std::size_t> offset;
  {
    MutexLock lock(mutex_);
    offset = ranges_.allocate(bytes, alignment);
    retained_ -= std::min(retained_, bytes);
  }
  if (!offset) {
    return Status(ErrorCode::kUnavailable, fmt::format("shared memory exhausted: {} bytes wanted, {} of {} in use",
                                                       bytes, allocated(), reserve_));
  }
#ifdef MADV_POPULATE_WRITE
  if (pages == Pages::kAtOnce && bytes >= kPopulateFrom) madvise(base_ + *offset, bytes, MADV_POPULATE_WRITE);
#endif
  return base_ + *offset;
}

void SharedArena::deallocate(std::byte* pointer) {
  const std::size_t offset = offset_of(pointer);
  MutexLock lock(mutex_);
  const std::size_t freed = ranges_.deallocate(offset);
  if (retained_ + freed <= retain_) {
    retained_ += freed;
  } else {
    release_pages(offset, freed);
  }
}

void SharedArena::release_pages(std::size_t offset, std::size_t bytes) {
  const std::size_t begin = (offset + kPage - 1) / kPage * kPage;
  const std::size_t end = (offset + bytes) / kPage * kPage;
  if (end <= begin) return;
  // Failure only means that the pages stay with us.
  (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(end - begin));
}

bool SharedArena::contains(const void* pointer, std::size_t bytes) const {
  const auto* start = static_cast<const std::byte*>(pointer);
  return start >= base_ && bytes <= reserve_ && start <= base_ + reserve_ - bytes;
}

std::size_t SharedArena::allocated() const {
  MutexLock lock(mutex_);
  return ranges_.allocated();
}

}  // namespace lockstep::comm
