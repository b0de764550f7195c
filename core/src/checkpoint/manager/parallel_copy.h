// Copies of large memory, as fast as the machine's memory allows.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::checkpoint {

struct CopyPart {
  void* to;
  const void* from;
  std::size_t bytes;
};

// Makes all copies. With `threads` above 1 others help, as many as there are cores and as the bytes are worth. The
// stores go past the caches: nobody reads the copies soon, and what the training has there stays.
void copy_all(std::span<const CopyPart> parts, int threads);

// Asks the system for huge pages for memory that has just been allocated, which then costs a fraction of the page
// faults. Does nothing for little memory, or where there are none.
void prefer_huge_pages(void* memory, std::size_t bytes);

}  // namespace lockstep::checkpoint
