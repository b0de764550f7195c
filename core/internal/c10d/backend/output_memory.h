// The memory that the outputs of one call cover. Tensors that share some of it go through temporaries, or one would
// overwrite what another still needs.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace lockstep {

class OutputMemory {
 public:
  // Whether an output has a byte in the range from the tensor's first to its last element. Leaves out the
  // `except_bytes` bytes that begin at `except`.
  bool overlaps(const at::Tensor& tensor, const void* except, std::size_t except_bytes) const;
  // Adds an output. Returns false if it overlaps an earlier one.
  bool add(const at::Tensor& tensor);

 private:
  struct Extent {
    const std::byte* begin;
    const std::byte* end;
  };
  static Extent extent_of(const at::Tensor& tensor);
  // The index of the first extent that ends after `place`.
  std::size_t first_after(const std::byte* place) const;

  c10::SmallVector<Extent, 8> extents_;  // in order; apart from one another
};

}  // namespace lockstep
