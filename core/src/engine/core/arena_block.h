// ArenaBlock: memory of an arena for one use, such as the staging of an operation; freed with this object.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "lockstep/base/status.h"
#include "lockstep/shm/shared_arena.h"

namespace lockstep::comm {

class ArenaBlock {
 public:
  ArenaBlock() = default;
  ArenaBlock(ArenaBlock&& other) noexcept
      : arena_(std::move(other.arena_)), data_(std::exchange(other.data_, nullptr)) {}
  ArenaBlock& operator=(ArenaBlock&& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~ArenaBlock() {
    if (data_ != nullptr) arena_->deallocate(data_);
  }
  Status allocate(const std::shared_ptr<SharedArena>& arena, std::size_t bytes,
                  SharedArena::Pages pages = SharedArena::Pages::kAtOnce) {
    LOCKSTEP_ASSIGN_OR_RETURN(data_, arena->allocate(bytes, pages));
    arena_ = arena;
    return {};
  }
  std::byte* data() const { return data_; }
  // Does not free the memory, because another rank may still use it.
  void leak() { data_ = nullptr; }

 private:
  std::shared_ptr<SharedArena> arena_;
  std::byte* data_ = nullptr;
};

}  // namespace lockstep::comm
