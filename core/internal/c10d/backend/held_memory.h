// The memory of a tensor that an operation under way uses.
#pragma once

#include <ATen/ATen.h>

#include <memory>

namespace lockstep {

// Holds the memory itself: the tensor may be given other memory (set_data) or be dropped meanwhile. LibTorch refuses to
// resize the tensor for as long, because that would free the memory.
class HeldMemory {
 public:
  explicit HeldMemory(const at::Tensor& tensor);

 private:
  struct MakeResizable {
    void operator()(c10::StorageImpl* storage) const;
  };

  c10::Storage storage_;
  std::unique_ptr<c10::StorageImpl, MakeResizable> fixed_;  // null: could not be resized anyway
};

}  // namespace lockstep
