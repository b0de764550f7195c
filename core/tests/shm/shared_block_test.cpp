#include "shm/shared_block.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/store/hash_store.h"

namespace lockstep::comm {
namespace {

using Pages = std::vector<std::size_t>;

struct Made {
  std::shared_ptr<SharedBlock> block;
  std::shared_ptr<PrivateView> view;
};

// A block of 4 pages of a group of one rank, and a view without the first page.
Made make() {
  const std::size_t page = PrivateView::page_bytes();
  HashStore store;
  const auto arena = SharedArena::create();
  HandOverOptions options;
  options.name = "group";
  options.control_bytes = 4 * page;
  auto block = SharedBlock::create(store, **const_cast<Result<std::shared_ptr<SharedArena>>&>(arena), options,
                                   Deadline::after(std::chrono::seconds(10)));
  EXPECT_TRUE(block.ok()) << block.status().message();
  auto view = PrivateView::map(**block, page, 3 * page);
  EXPECT_TRUE(view.ok()) << view.status().message();
  return {*block, *view};
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

TEST(PrivateView, OutlivesTheBlock) {
  Made made = make();
  made.block->base()[PrivateView::page_bytes()] = std::byte{4};
  made.block.reset();
  EXPECT_EQ(made.view->base()[0], std::byte{4});
}

}  // namespace
}  // namespace lockstep::comm
