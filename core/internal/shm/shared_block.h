// SharedBlock: memory of a fixed size that all ranks of one machine see, without an owner among them.
// PrivateView: the same memory as a program sees it that may also write to it for itself alone.
//
// An arena belongs to one rank, which may free a buffer while others still read it. A block belongs to all ranks alike:
// the kernel frees it with the last rank that has it. It is one memfd without a name, zero-filled at first; a page
// exists only once it is touched. Addresses differ between the ranks. Forks of a rank do not have it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "shm/hand_over.h"

namespace lockstep::comm {

class SharedBlock {
 public:
  // Collective; `options.control_bytes` is the block's size. Blocks until every rank has taken part. A rank on another
  // machine is refused, by name. `arena`: any arena of this process. The key hand_over_key() stays in the store.
  static Result<std::shared_ptr<SharedBlock>> create(Store& store, const SharedArena& arena, HandOverOptions options,
                                                     Deadline deadline);

  std::byte* base() const { return parts_.control->base(); }
  std::size_t bytes() const { return parts_.control->bytes(); }
  const Fd& file() const { return *parts_.control_file; }
  // Makes the pages of this range, and moves the range to huge pages where it covers whole ones. Afterwards
  // copied_pages() of a view takes a tenth of the time. Call it on one rank, before any view has touched the range.
  //
  // Does nothing where the system cannot do this: kernels before 6.1; shmem_enabled "deny"; no free memory in one
  // piece; kernels before 6.11 that report all of a huge page as copies (one try in each process finds out); several
  // NUMA nodes, since all pages would be on the node of the calling rank.
  void use_huge_pages(std::size_t offset, std::size_t bytes) const;
  // Whether the process of this rank has ended, so that it writes to the block no more. A rank that has left its group
  // is not gone.
  bool is_gone(int rank) const { return parts_.peers[static_cast<std::size_t>(rank)].is_gone(); }
  // Memory in another rank's arena, by its offset there, as long as this block lives. It stays readable when the rank
  // is gone. Fails if the system cannot map it. Thread-safe.
  Result<const std::byte*> memory_of(int rank, std::size_t offset) const;

 private:
  explicit SharedBlock(HandOver parts) : parts_(std::move(parts)) {}

  const HandOver parts_;
};

// A part of a block, mapped a second time. What is written to the block shows here, in each page until this process
// writes to that page through the view: then the page is a copy of its own (copy on write), which nobody else sees and
// which does not change with the block any more. Forks have a view of their own. Not thread-safe, except for reading
// and writing the memory.
class PrivateView {
 public:
  // `offset` and `bytes` are whole pages. The view can be on huge pages if `offset` is a multiple of alignment().
  // kUnsupported where the system does not tell which pages are copies (/proc/self/pagemap).
  static Result<std::shared_ptr<PrivateView>> map(const SharedBlock& block, std::size_t offset, std::size_t bytes);
  ~PrivateView();
  PrivateView(const PrivateView&) = delete;
  PrivateView& operator=(const PrivateView&) = delete;

  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  // The pages that are copies, by number, in rising order.
  Result<std::vector<std::size_t>> copied_pages() const;
  // These pages show the block again; what this process has written to them is lost. Fails where the program has locked
  // its memory (mlockall).
  Status drop_copies(const std::vector<std::size_t>& pages);
  // Makes copies of all pages of this range: what others write to the block shows here no more. Contents stay.
  void detach(std::size_t offset, std::size_t bytes);

  static std::size_t page_bytes();
  static std::size_t alignment();

 private:
  PrivateView(std::byte* base, std::size_t bytes, Fd page_map)
      : base_(base), bytes_(bytes), page_map_(std::move(page_map)) {}
  Status check_page_map();

  std::byte* const base_;
  const std::size_t bytes_;
  const Fd page_map_;
};

}  // namespace lockstep::comm
