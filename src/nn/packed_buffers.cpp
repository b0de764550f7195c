#include "packed_buffers.h"

#include <cstring>

namespace lockstep::nn_detail {
namespace {

constexpr std::int64_t kLine = 64;

std::int64_t padded(const torch::Tensor& tensor) {
  return (static_cast<std::int64_t>(tensor.nbytes()) + kLine - 1) / kLine * kLine;
}

}  // namespace

PackedBuffers::PackedBuffers(const Backend& backend, std::vector<torch::Tensor> buffers) : backend_(backend) {
  std::int64_t bytes = 0;
  for (torch::Tensor& buffer : buffers) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    bytes += padded(buffer);
    tensors_.push_back(buffer);
  }
  if (!tensors_.empty()) packed_ = backend_.allocate(bytes, torch::kByte);
}

void PackedBuffers::copy(bool pack) {
  const torch::NoGradGuard no_grad;
  std::int64_t offset = 0;
  for (torch::Tensor& tensor : tensors_) {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    if (tensor.is_cpu() && tensor.is_contiguous()) {
      auto* place = static_cast<std::byte*>(packed_.data_ptr()) + offset;
      pack ? std::memcpy(place, tensor.const_data_ptr(), bytes) : std::memcpy(tensor.data_ptr(), place, bytes);
    } else {
      const torch::Tensor place = packed_.narrow(0, offset, bytes).view(tensor.scalar_type()).view(tensor.sizes());
      pack ? place.copy_(tensor) : tensor.copy_(place);
    }
    offset += padded(tensor);
  }
}

void PackedBuffers::start(int source) {
  if (empty()) return;
  finish();
  source_ = source;
  if (backend_.rank() == source) copy(/*pack=*/true);
  work_ = backend_.start_broadcast(packed_, source);
}

void PackedBuffers::finish() {
  if (!work_) return;
  std::exchange(work_, nullptr)->wait();
  if (backend_.rank() != source_) copy(/*pack=*/false);
}

}  // namespace lockstep::nn_detail
