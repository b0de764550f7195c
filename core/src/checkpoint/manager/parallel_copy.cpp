#include "parallel_copy.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/arithmetic.h"
#include "base/thread.h"
#include "reduce/copy.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t kPiece = 2 << 20;
constexpr std::size_t kWorthAThread = 16 << 20;
constexpr std::size_t kHugePage = 2 << 20;

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

std::vector<CopyPart> pieces_of(std::span<const CopyPart> parts) {
  std::vector<CopyPart> pieces;
  for (const CopyPart& part : parts) {
    for (std::size_t at = 0; at < part.bytes; at += kPiece) {
      pieces.push_back({static_cast<std::byte*>(part.to) + at, static_cast<const std::byte*>(part.from) + at,
                        std::min(kPiece, part.bytes - at)});
    }
  }
  return pieces;
}

}  // namespace

void copy_all(std::span<const CopyPart> parts, int threads) {
  std::size_t bytes = 0;
  for (const CopyPart& part : parts) bytes += part.bytes;
  const std::vector<CopyPart> pieces = pieces_of(parts);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      comm::copy_past_caches(pieces[i].to, pieces[i].from, pieces[i].bytes);
    }
  };
  const auto most = static_cast<int>(std::min<std::size_t>(bytes / kWorthAThread + 1, 64));
  std::vector<std::jthread> helpers;
  for (int i = 1; i < std::min({threads, most, cores()}); ++i) {
    auto helper = start_thread("a copy", work);
    if (!helper.ok()) break;  // the others do its work
    helpers.push_back(std::move(helper).value());
  }
  work();
}

void prefer_huge_pages(void* memory, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const auto begin = round_up(address, kHugePage);
  const auto end = (address + bytes) / kHugePage * kHugePage;
  if (begin < end) ::madvise(static_cast<std::byte*>(memory) + (begin - address), end - begin, MADV_HUGEPAGE);
}

}  // namespace lockstep::checkpoint
