#include "lockstep/shm/shared_arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/arithmetic.h"
#include "lockstep/base/log.h"
#include "memory_file.h"
#include "ranges.h"
#include "shm/mapping.h"
#include "shm/memory_limits.h"
#include "shm/peer.h"

namespace lockstep::comm {
namespace {

// From this size on the pages of an allocation are made in one call instead of by a page fault for each 4 KiB.
constexpr std::size_t kPopulateFrom = std::size_t{64} << 10;

// The first segments of 1024 ranks take 2^45 of the 2^47 bytes that a process has.
constexpr std::size_t kLargestFirst = std::size_t{32} << 30;
// A limited address space is shared by the arenas of all ranks, because each rank maps all of them.
constexpr std::size_t kShareOfLimited = 256;
constexpr std::size_t kSmallestChosen = std::size_t{1} << 20;

std::size_t whole_pages(std::size_t bytes) {
  return round_up(bytes, kPage);
}

std::size_t choose_first_segment(std::size_t limit) {
  std::size_t chosen = std::min(limit, kLargestFirst);
  const std::size_t space = address_space_left();
  if (space != kNoLimit) chosen = std::min(chosen, std::max(kSmallestChosen, space / kShareOfLimited));
  const std::size_t file = largest_file();
  if (file != kNoLimit && file > 2 * kPage) chosen = std::min(chosen, file - 2 * kPage);
  return chosen;
}

Status set_size(int fd, std::size_t bytes) {
  const std::size_t most = largest_file();
  if (bytes > most) {
    return {
        ErrorCode::kUnavailable,
        fmt::format("{} bytes of shared memory are more than files may have here, {} bytes (ulimit -f)", bytes, most)};
  }
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) return {};
  return Status::from_errno(fmt::format("cannot reserve {} bytes of shared memory", bytes), errno);
}

Status with_remedy(const Status& status) {
  return {status.code(), status.message() + "; is the address space limited (ulimit -v)?"};
}

}  // namespace

Result<std::shared_ptr<SharedArena>> SharedArena::create(const SharedArenaOptions& options) {
  SharedArenaOptions own = options;
  if (own.limit == 0) own.limit = usable_memory();
  const bool chosen = own.first_segment == 0;
  std::size_t first = whole_pages(chosen ? choose_first_segment(own.limit) : std::min(own.first_segment, own.limit));
  LOCKSTEP_ASSIGN_OR_RETURN(Fd fd, make_memory_file("lockstep-arena", 0));
  fd.keep_from_forks();
  LOCKSTEP_ASSIGN_OR_RETURN(Fd life, hold_owner_lock(fd.get()));
  for (;; first = whole_pages(first / 2)) {
    auto base = map_shared(fd.get(), 0, with_table(first));
    if (base.ok()) {
      // Only after mapping: the file cannot become smaller again.
      if (Status sized = set_size(fd.get(), with_table(first)); !sized.ok()) {
        munmap(base.value(), with_table(first));
        return sized;
      }
      return std::shared_ptr<SharedArena>(new SharedArena(std::move(fd), std::move(life), base.value(), first, own),
                                          LeakInForks());
    }
    if (!chosen || first <= kSmallestChosen) return with_remedy(base.status());
  }
}

SharedArena::SharedArena(Fd fd, Fd life, std::byte* base, std::size_t first_bytes, const SharedArenaOptions& options)
    : fd_(std::move(fd)),
      life_(std::move(life)),
      base_(base),
      first_bytes_(first_bytes),
      limit_(options.limit),
      retain_(options.retain),
      ranges_(std::make_unique<RangeAllocator>(first_bytes)),
      made_(std::make_unique<RangeSet>()) {
  segments_.add({0, first_bytes, base});
  fork_handler_.emplace(&SharedArena::make_all_private, this);
}

SharedArena::~SharedArena() {
  fork_handler_.reset();
  munmap(base_, with_table(first_bytes_));
  for (std::size_t i = 1; i < segments_.count(); ++i) munmap(segments_[i].base, segments_[i].end - segments_[i].begin);
  for (const Withdrawn* its = withdrawn_.load(std::memory_order_relaxed); its != nullptr;)
    delete std::exchange(its, its->before);
}

// The child may read its tensors and write to them, in pages of its own. Withdrawn ranges are such pages already.
void SharedArena::make_all_private(void* arena) {
  const auto& self = *static_cast<const SharedArena*>(arena);
  for (std::size_t i = 0; i < self.segments_.count(); ++i) {
    const Segment& segment = self.segments_[i];
    for (std::size_t begin = segment.begin; begin < segment.end;) {
      const Withdrawn* const next = self.first_withdrawn(begin, segment.end);
      const std::size_t gap_end = next == nullptr ? segment.end : next->begin;
      if (begin < gap_end) self.map_private(begin, gap_end);
      begin = next == nullptr ? segment.end : next->end;
    }
  }
}

Result<std::byte*> SharedArena::allocate(std::size_t bytes, Pages pages) {
  if (!origin_.is_this_process()) {
    return Status(ErrorCode::kUnsupported,
                  "this process is a fork of the one whose shared memory it asks for; only that one can give any out");
  }
  std::optional<std::size_t> offset;
  bool make_pages = pages == Pages::kAtOnce && bytes >= kPopulateFrom;
  {
    MutexLock lock(mutex_);
    if (bytes > limit_ || ranges_->allocated() + bytes > whole_pages(limit_)) return exhausted(bytes);
    offset = ranges_->allocate(bytes, kPage);
    if (!offset) {
      LOCKSTEP_RETURN_IF_ERROR(grow(whole_pages(bytes)));
      offset = ranges_->allocate(bytes, kPage);
    }
    if (!offset) return exhausted(bytes);
    retained_ -= std::min(retained_, bytes);
    make_pages = make_pages && !made_->contains(*offset, *offset + bytes);
  }
  if (make_pages) make_pages_of(*offset, bytes);
  return at(*offset);
}

// The call takes longer than a page fault even if all pages exist: 20 us for 256 KiB.
void SharedArena::make_pages_of([[maybe_unused]] std::size_t offset, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(at(offset), bytes, MADV_POPULATE_WRITE) != 0) return;
  MutexLock lock(mutex_);
  made_->add(offset, offset + bytes);
#endif
}

Status SharedArena::exhausted(std::size_t bytes) const {
  return {ErrorCode::kUnavailable, fmt::format("shared memory exhausted: {} bytes wanted, {} of {} in use", bytes,
                                               ranges_->allocated(), limit_)};
}

// By at least a quarter, so that there are few segments; only by `bytes` where there is no room for more.
Status SharedArena::grow(std::size_t bytes) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < segments_.count(); ++i) total += segments_[i].end - segments_[i].begin;
  const std::size_t wanted = std::max(bytes, whole_pages(total / 4));
  Status added = add_segment(wanted);
  if (added.ok() || wanted == bytes) return added;
  return add_segment(bytes);
}

// Between two segments lies a page that is never allocated, so that free ranges are not merged across it; behind the
// first segment it is the table. SegmentTable explains the order of steps.
Status SharedArena::add_segment(std::size_t bytes) {
  if (segments_.count() == Segments::kMost) {
    return {ErrorCode::kUnavailable, fmt::format("shared memory has grown {} times and cannot again", Segments::kMost)};
  }
  const std::size_t begin = segments_[segments_.count() - 1].end + kPage;
  LOCKSTEP_RETURN_IF_ERROR(set_size(fd_.get(), begin + bytes));
  const auto base = map_shared(fd_.get(), begin, bytes);
  if (!base.ok()) return with_remedy(base.status());
  auto& table = *reinterpret_cast<SegmentTable*>(base_ + first_bytes_);
  const std::uint64_t known = table.count.load(std::memory_order_relaxed);
  table.entries[known] = {begin, begin + bytes};
  table.count.store(known + 1, std::memory_order_release);
  segments_.add({begin, begin + bytes, base.value()});
  ranges_->add(begin, bytes);
  return {};
}

std::byte* SharedArena::at(std::size_t offset) const {
  if (offset < first_bytes_) return base_ + offset;
  const Segment* const segment = segments_.with_offset(offset);
  return segment == nullptr ? nullptr : segment->base + (offset - segment->begin);
}

std::size_t SharedArena::offset_beyond(const void* pointer) const {
  const Segment* const segment = segments_.with_memory(pointer, 1);
  return segment->begin + static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - segment->base);
}

void SharedArena::deallocate(std::byte* pointer) {
  if (!origin_.is_this_process()) return;
  const std::size_t offset = offset_of(pointer);
  MutexLock lock(mutex_);
  if (const std::size_t bytes = ranges_->size_at(offset); first_withdrawn(offset, offset + bytes) != nullptr) {
    // Others may still write there: the range is never reused, but takes no memory.
    return release_pages(offset, bytes);
  }
  const std::size_t freed = ranges_->deallocate(offset);
  if (retained_ + freed <= retain_) {
    retained_ += freed;
  } else {
    release_pages(offset, freed);
  }
}

void SharedArena::release_pages(std::size_t offset, std::size_t bytes) {
  const std::size_t begin = whole_pages(offset);
  const std::size_t end = (offset + bytes) / kPage * kPage;
  if (end <= begin) return;
  made_->remove(begin, end);
  // A library that has pinned these pages for a network card (UCX) learns of this call, not of the next one.
  madvise(at(begin), end - begin, MADV_DONTNEED);
  // If it fails, the pages stay allocated.
  (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(end - begin));
}

void SharedArena::trim() {
  if (!origin_.is_this_process()) return;
  MutexLock lock(mutex_);
  ranges_->for_each_free([this](std::size_t offset, std::size_t bytes)
                             LOCKSTEP_REQUIRES(mutex_) { release_pages(offset, bytes); });
  retained_ = 0;
}

void SharedArena::withdraw(const void* pointer, std::size_t bytes) {
  if (!origin_.is_this_process()) return;
  const std::size_t first = offset_of(pointer) / kPage * kPage;
  const std::size_t end = whole_pages(offset_of(pointer) + bytes);
  MutexLock lock(mutex_);
  for (std::size_t begin = first; begin < end;) {
    const Withdrawn* const next = first_withdrawn(begin, end);
    const std::size_t gap_end = next == nullptr ? end : std::max(begin, next->begin);
    if (begin < gap_end) {
      if (Status made = make_private(begin, gap_end); !made.ok()) return log::warning(made.message());
      withdrawn_.store(new Withdrawn{begin, gap_end, withdrawn_.load(std::memory_order_relaxed)},
                       std::memory_order_release);
    }
    begin = next == nullptr ? end : next->end;
  }
}

// Replaces the shared mapping by a private one of the same file. All that this process has written stays visible at
// every moment, also what its threads write meanwhile. A write to each page then makes the page this process's own.
Status SharedArena::make_private(std::size_t begin, std::size_t end) const {
  std::byte* const place = at(begin);
  if (!map_private(begin, end)) {
    return Status::from_errno("memory that a frozen rank may still write to cannot be made private", errno);
  }
  for (std::size_t page = 0; page < end - begin; page += kSmallestPage) {
    // A write that changes nothing, even if another thread writes there at the same time. Compilers do not remove it.
    std::atomic_ref byte(reinterpret_cast<unsigned char&>(place[page]));
    unsigned char value = byte.load(std::memory_order_relaxed);
    while (!byte.compare_exchange_weak(value, value, std::memory_order_relaxed)) {
    }
  }
  return {};
}

// Replaces the mapping of this range, which lies in one segment.
bool SharedArena::map_private(std::size_t begin, std::size_t end) const {
  return mmap(at(begin), end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd_.get(),
              static_cast<off_t>(begin)) != MAP_FAILED;
}

const SharedArena::Withdrawn* SharedArena::first_withdrawn(std::size_t begin, std::size_t end) const {
  const Withdrawn* first = nullptr;
  for (const Withdrawn* its = withdrawn_.load(std::memory_order_acquire); its != nullptr; its = its->before) {
    const bool touches = its->begin < end && its->end > begin;
    if (touches && (first == nullptr || its->begin < first->begin)) first = its;
  }
  return first;
}

std::size_t SharedArena::allocated() const {
  MutexLock lock(mutex_);
  return ranges_->allocated();
}

}  // namespace lockstep::comm
