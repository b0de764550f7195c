#include "shm/mapping.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace lockstep::comm {
namespace {

constexpr std::size_t kPeriod = std::size_t{256} << 20;
constexpr std::size_t kStep = std::size_t{34} << 20;  // 128 steps until an address modulo kPeriod comes again

std::size_t next_place() {
  static std::atomic<std::size_t> mappings = 0;
  return mappings.fetch_add(1, std::memory_order_relaxed) * kStep % kPeriod;
}

// Address space at the next place; null when there is not enough.
std::byte* reserve_place(std::size_t bytes) {
  // Enough for any place; the rest is given back.
  void* space = mmap(nullptr, bytes + kPeriod, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(space);
  const std::size_t before = (next_place() + kPeriod - begin % kPeriod) % kPeriod;
  auto* const base = static_cast<std::byte*>(space) + before;
  if (before > 0) munmap(space, before);
  if (before < kPeriod) munmap(base + bytes, kPeriod - before);
  return base;
}

Result<std::byte*> map_at_next_place(int fd, std::size_t offset, std::size_t bytes, int kind) {
  // A slow place is better than none.
  std::byte* const place = reserve_place(bytes);
  void* const base = mmap(place, bytes, PROT_READ | PROT_WRITE,
                          kind | MAP_NORESERVE | (place != nullptr ? MAP_FIXED : 0), fd, static_cast<off_t>(offset));
  if (base != MAP_FAILED) return static_cast<std::byte*>(base);
  const int error = errno;
  if (place != nullptr) munmap(place, bytes);
  return Status::from_errno(fmt::format("cannot map {} bytes of shared memory", bytes), error);
}

}  // namespace

Result<std::byte*> map_shared(int fd, std::size_t offset, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const base, map_at_next_place(fd, offset, bytes, MAP_SHARED));
  madvise(base, bytes, MADV_DONTFORK);
  // Has an effect only where the administrator allows huge pages for shared memory ("advise").
  madvise(base, bytes, MADV_HUGEPAGE);
  return base;
}

Result<std::byte*> map_private(int fd, std::size_t offset, std::size_t bytes) {
  return map_at_next_place(fd, offset, bytes, MAP_PRIVATE);
}

void populate([[maybe_unused]] std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
#endif
}

Result<std::shared_ptr<Mapping>> Mapping::map(int fd, std::size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::byte* const base, map_shared(fd, 0, bytes));
  return std::shared_ptr<Mapping>(new Mapping(base, bytes));
}

// In a fork something else may be mapped at this address.
Mapping::~Mapping() {
  if (origin_.is_this_process()) munmap(base_, bytes_);
}

}  // namespace lockstep::comm
