#include "c10d/backend/output_memory.h"

#include <algorithm>

namespace lockstep {

OutputMemory::Extent OutputMemory::extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {nullptr, nullptr};
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* const begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size())};
}

std::size_t OutputMemory::first_after(const std::byte* place) const {
  const auto found = std::upper_bound(extents_.begin(), extents_.end(), place,
                                      [](const std::byte* at, const Extent& extent) { return at < extent.end; });
  return static_cast<std::size_t>(found - extents_.begin());
}

bool OutputMemory::overlaps(const at::Tensor& tensor, const void* except, std::size_t except_bytes) const {
  const Extent extent = extent_of(tensor);
  if (extent.begin == extent.end) return false;
  const auto* const excepted = static_cast<const std::byte*>(except);
  for (std::size_t i = first_after(extent.begin); i < extents_.size() && extents_[i].begin < extent.end; ++i) {
    if (extents_[i].begin < excepted || extents_[i].end > excepted + except_bytes) return true;
  }
  return false;
}

bool OutputMemory::add(const at::Tensor& tensor) {
  Extent extent = extent_of(tensor);
  if (extent.begin == extent.end) return true;
  const std::size_t first = first_after(extent.begin);
  std::size_t last = first;
  for (; last < extents_.size() && extents_[last].begin < extent.end; ++last) {
    extent.begin = std::min(extent.begin, extents_[last].begin);
    extent.end = std::max(extent.end, extents_[last].end);
  }
  const bool apart = first == last;
  extents_.erase(extents_.begin() + first, extents_.begin() + last);
  extents_.insert(extents_.begin() + first, extent);
  return apart;
}

}  // namespace lockstep
