#include "shm/shared_block.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "base/arithmetic.h"
#include "memory_file.h"
#include "shm/mapping.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace lockstep::comm {
namespace {

// Documentation/admin-guide/mm/pagemap.rst of the kernel.
constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
constexpr std::uint64_t kSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kOfFile = std::uint64_t{1} << 61;

bool is_copy(std::uint64_t entry) {
  return (entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0;
}

// A write that changes nothing, even if another thread writes there at the same time. Compilers do not remove it.
void write_same(std::byte& place) {
  std::atomic_ref byte(reinterpret_cast<unsigned char&>(place));
  unsigned char value = byte.load(std::memory_order_relaxed);
  while (!byte.compare_exchange_weak(value, value, std::memory_order_relaxed)) {
  }
}

// MADV_COLLAPSE asks for huge pages by itself, whatever is set for faults. It takes only ranges that have pages.
bool collapse([[maybe_unused]] std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  return madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0 &&
         madvise(memory.data(), memory.size(), MADV_COLLAPSE) == 0;
#else
  return false;
#endif
}

// All pages would be on the node of the rank that makes them, and far from other ranks.
bool has_one_memory_node() {
  std::ifstream file("/sys/devices/system/node/online");
  std::string nodes;  // "0", "0-1"; without the file the kernel knows of one node
  return !std::getline(file, nodes) || nodes.find_first_of(",-") == std::string::npos;
}

// Kernels before 6.11 that have no backport report every small page of a huge page as a copy (kOfFile is not set). Each
// step would then compare and drop everything.
Result<bool> page_map_knows_huge_pages() {
  LOCKSTEP_ASSIGN_OR_RETURN(const Fd file, make_memory_file("lockstep-probe", kHugePage));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto shared, Mapping::map(file.get(), kHugePage));
  if (!collapse({shared->base(), kHugePage})) return false;
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const seen, map_private(file.get(), 0, kHugePage));
  std::atomic_ref(reinterpret_cast<unsigned char&>(*seen)).load();  // the page is present after that
  const Fd page_map(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::uint64_t entry = 0;
  const auto place =
      static_cast<off_t>(reinterpret_cast<std::uintptr_t>(seen) / PrivateView::page_bytes() * sizeof(entry));
  const bool is_read =
      page_map.valid() && pread(page_map.get(), &entry, sizeof(entry), place) == static_cast<ssize_t>(sizeof(entry));
  munmap(seen, kHugePage);
  return is_read && (entry & kPresent) != 0 && !is_copy(entry);
}

bool can_use_huge_pages() {
  static const bool can = [] {
    const Result<bool> is_known = page_map_knows_huge_pages();
    return is_known.ok() && is_known.value() && has_one_memory_node();
  }();
  return can;
}

}  // namespace

Result<std::shared_ptr<SharedBlock>> SharedBlock::create(Store& store, const SharedArena& arena,
                                                         HandOverOptions options, Deadline deadline) {
  options.keep_control_file = true;
  LOCKSTEP_ASSIGN_OR_RETURN(HandOver parts, hand_over(store, arena, options, deadline));
  return std::shared_ptr<SharedBlock>(new SharedBlock(std::move(parts)));
}

Result<const std::byte*> SharedBlock::memory_of(int rank, std::size_t offset) const {
  ArenaView& arena = *parts_.peers[static_cast<std::size_t>(rank)].arena;
  if (offset < arena.first_bytes()) return arena.base() + offset;
  LOCKSTEP_RETURN_IF_ERROR(arena.reach(offset));
  return arena.at(offset);
}

void SharedBlock::use_huge_pages(std::size_t offset, std::size_t bytes) const {
  const std::size_t begin = round_up(offset, kHugePage);
  const std::size_t end = (offset + bytes) / kHugePage * kHugePage;
  if (end > begin && can_use_huge_pages()) collapse({base() + begin, end - begin});
}

std::size_t PrivateView::page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t PrivateView::alignment() {
  return std::max(kHugePage, page_bytes());
}

Result<std::shared_ptr<PrivateView>> PrivateView::map(const SharedBlock& block, std::size_t offset, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const base, map_private(block.file().get(), offset, bytes));
  Fd page_map(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const int error = errno;
  const bool opened = page_map.valid();
  std::shared_ptr<PrivateView> view(new PrivateView(base, bytes, std::move(page_map)));
  if (!opened) {
    return Status(ErrorCode::kUnsupported,
                  Status::from_errno("cannot open /proc/self/pagemap, which tells of writes", error).message());
  }
  LOCKSTEP_RETURN_IF_ERROR(view->check_page_map());
  return view;
}

// Some kernels (in sandboxes) have the file, but not what is in it.
Status PrivateView::check_page_map() {
  write_same(base_[0]);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto written, copied_pages());
  LOCKSTEP_RETURN_IF_ERROR(drop_copies({0}));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto dropped, copied_pages());
  if (written == std::vector<std::size_t>{0} && dropped.empty()) return {};
  return {ErrorCode::kUnsupported, "/proc/self/pagemap does not tell which pages were written on this system"};
}

PrivateView::~PrivateView() {
  munmap(base_, bytes_);
}

Result<std::vector<std::size_t>> PrivateView::copied_pages() const {
  const std::size_t pages = bytes_ / page_bytes();
  std::vector<std::uint64_t> entries(pages);
  std::size_t read = 0;
  const std::size_t all = pages * sizeof(std::uint64_t);
  const auto first = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(base_) / page_bytes() * sizeof(std::uint64_t));
  while (read < all) {
    const ssize_t got = pread(page_map_.get(), reinterpret_cast<std::byte*>(entries.data()) + read, all - read,
                              first + static_cast<off_t>(read));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Status::from_errno("cannot read /proc/self/pagemap", got < 0 ? errno : EIO);
    read += static_cast<std::size_t>(got);
  }
  std::vector<std::size_t> copies;
  for (std::size_t page = 0; page < pages; ++page) {
    if (is_copy(entries[page])) copies.push_back(page);
  }
  return copies;
}

Status PrivateView::drop_copies(const std::vector<std::size_t>& pages) {
  for (std::size_t first = 0; first < pages.size();) {
    std::size_t last = first + 1;
    while (last < pages.size() && pages[last] == pages[last - 1] + 1) ++last;
    if (madvise(base_ + pages[first] * page_bytes(), (last - first) * page_bytes(), MADV_DONTNEED) != 0)
      return Status::from_errno("cannot give up copies of shared pages (madvise); is memory locked?", errno);
    first = last;
  }
  return {};
}

void PrivateView::detach(std::size_t offset, std::size_t bytes) {
  for (std::size_t page = offset / page_bytes() * page_bytes(); page < offset + bytes; page += page_bytes()) {
    write_same(base_[page]);
  }
}

}  // namespace lockstep::comm
