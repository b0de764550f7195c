#include "shm/shared_block.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/store/hash_store.h"
#include "shm/mapping.h"

namespace lockstep::comm {
namespace {

using Pages = std::vector<std::size_t>;

struct Made {
  std::shared_ptr<SharedBlock> block;
  std::shared_ptr<PrivateView> view;
};

// A block of a group of one rank, and a view without its beginning.
Made make(std::size_t begin, std::size_t bytes) {
  HashStore store;
  const auto arena = SharedArena::create();
  HandOverOptions options;
  options.name = "group";
  options.control_bytes = bytes;
  auto block = SharedBlock::create(store, **const_cast<Result<std::shared_ptr<SharedArena>>&>(arena), options,
                                   Deadline::after(std::chrono::seconds(10)));
  EXPECT_TRUE(block.ok()) << block.status().message();
  auto view = PrivateView::map(**block, begin, bytes - begin);
  EXPECT_TRUE(view.ok()) << view.status().message();
  return {*block, *view};
}

// 4 pages, the first of them not in the view.
Made make() {
  return make(PrivateView::page_bytes(), 4 * PrivateView::page_bytes());
}

// Bytes of the mapping at `address` that are on huge pages of shared memory.
std::size_t huge_bytes(const std::byte* address) {
  std::ifstream lines("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(lines, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    unsigned long kibibytes = 0;
    const auto place = reinterpret_cast<unsigned long>(address);
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_here = begin <= place && place < end;
    if (is_here && std::sscanf(line.c_str(), "ShmemPmdMapped: %lu", &kibibytes) == 1) return kibibytes << 10;
  }
  return 0;
}

// Whether this system gives them to who asks.
bool has_huge_pages() {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const std::shared_ptr<SharedArena> memory = SharedArena::create().value();
  std::byte* const base = memory->at(0);
  std::memset(base, 1, kHugePage);
  return madvise(base, kHugePage, kCollapse) == 0;
}

TEST(PrivateView, ShowsTheBlockUntilItIsWritten) {
  const std::size_t page = PrivateView::page_bytes();
  const Made made = make();
  std::byte* const shared = made.block->base() + page;
  std::byte* const seen = made.view->base();
  EXPECT_EQ(seen[5], std::byte{0});
  shared[5] = std::byte{1};
  shared[2 * page] = std::byte{2};
  EXPECT_EQ(seen[5], std::byte{1});
  EXPECT_EQ(made.view->copied_pages().value(), Pages{}) << "reading copies nothing";

  seen[6] = std::byte{7};
  EXPECT_EQ(shared[6], std::byte{0}) << "nobody else sees it";
  shared[5] = std::byte{3};
  EXPECT_EQ(seen[5], std::byte{1}) << "of before the write";
  EXPECT_EQ(made.view->copied_pages().value(), Pages{0});

  EXPECT_TRUE(made.view->drop_copies({0}).ok());
  EXPECT_EQ(seen[5], std::byte{3});
  EXPECT_EQ(seen[6], std::byte{0});
  EXPECT_EQ(made.view->copied_pages().value(), Pages{});

  made.view->detach(2 * page, 10);
  shared[2 * page] = std::byte{9};
  EXPECT_EQ(seen[2 * page], std::byte{2});
  EXPECT_EQ(made.view->copied_pages().value(), Pages{2});
}

TEST(PrivateView, ShowsTheBlockOnHugePagesAsOnSmallOnes) {
  const std::size_t page = PrivateView::page_bytes();
  const std::size_t begin = PrivateView::alignment();
  const Made made = make(begin, begin + 3 * kHugePage + page);
  std::byte* const shared = made.block->base() + begin;
  std::byte* const seen = made.view->base();
  const std::size_t middle = kHugePage + 5 * page;
  shared[middle] = std::byte{1};
  made.block->use_huge_pages(begin, 3 * kHugePage + page);
  EXPECT_EQ(seen[middle], std::byte{1});
  EXPECT_EQ(seen[2 * kHugePage], std::byte{0});
  // A system that has them may leave them out: its page map may not know them, or it has several NUMA nodes.
  EXPECT_LE(huge_bytes(seen), has_huge_pages() ? 3 * kHugePage : 0);
  EXPECT_EQ(made.view->copied_pages().value(), Pages{});

  seen[middle] = std::byte{2};
  seen[2 * kHugePage + page] = std::byte{3};
  EXPECT_EQ(shared[middle], std::byte{1});
  EXPECT_EQ(made.view->copied_pages().value(), (Pages{middle / page, 2 * kHugePage / page + 1}));
  shared[middle - page] = std::byte{4};
  EXPECT_EQ(seen[middle - page], std::byte{4}) << "the page before shows the block still";
  EXPECT_TRUE(made.view->drop_copies({middle / page}).ok());
  EXPECT_EQ(seen[middle], std::byte{1});
  EXPECT_EQ(made.view->copied_pages().value(), (Pages{2 * kHugePage / page + 1}));
}

TEST(PrivateView, OutlivesTheBlock) {
  Made made = make();
  made.block->base()[PrivateView::page_bytes()] = std::byte{4};
  made.block.reset();
  EXPECT_EQ(made.view->base()[0], std::byte{4});
}

}  // namespace
}  // namespace lockstep::comm
