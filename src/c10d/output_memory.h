// The memory that the outputs of one call cover: where tensors share some of it, their data must pass through memory of
// its own, or one would overwrite what another still needs.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace lockstep {

class OutputMemory {
 public:
  // Whether some byte of the memory from the tensor's first to its last element is an output's, other than one that
  // lies within the `except_bytes` from `except` on.
  bool overlaps(const at::Tensor& tensor, const void* except, std::size_t except_bytes) const;
  // Makes it an output. False: it overlaps one that was there before.
  bool add(const at::Tensor& tensor);

 private:
  struct Extent {
    const std::byte* begin;
    const std::byte* end;
  };
  static Extent extent_of(const at::Tensor& tensor);
  // The first that ends behind `place`.
  std::size_t first_after(const std::byte* place) const;

  c10::SmallVector<Extent, 8> extents_;  // in order; apart from one another
};

}  // namespace lockstep
