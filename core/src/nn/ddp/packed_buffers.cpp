#include "packed_buffers.h"

#include <algorithm>
#include <cstring>

#include "base/arithmetic.h"
#include "base/call_place.h"
#include "copies.h"

namespace lockstep::nn_detail {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t padded(std::int64_t bytes) {
  return round_up(bytes, kAlignment);
}

// Each element of an expanded buffer once: writing all of them would write some memory several times.
torch::Tensor distinct(torch::Tensor tensor) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

// Whether its memory holds its elements, one after the other.
bool is_plain_memory(const torch::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

std::size_t packed_bytes(const torch::Tensor& buffer) {
  return distinct(buffer).nbytes();
}

PackedBuffers::PackedBuffers(const DeviceBackend& backend, std::vector<NamedParameter> buffers) : backend_(backend) {
  std::int64_t bytes = 0;
  for (std::size_t number = 0; number < buffers.size(); ++number) {
    const torch::Tensor tensor = buffers[number].tensor;
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const auto own = static_cast<std::int64_t>(packed_bytes(tensor));
    items_.push_back({number, std::move(buffers[number]), tensor.sizes().vec(), tensor.scalar_type(), own});
    bytes += padded(own);
  }
  if (items_.empty()) return;
  packed_ = backend_.allocate(bytes, torch::kByte);
  std::int64_t offset = 0;
  for (Item& item : items_) {
    item.place = packed_.narrow(0, offset, item.bytes).view(item.dtype);
    offset += padded(item.bytes);
  }
}

// A broadcast that is under way unpacks into the new tensors.
void PackedBuffers::replace(const std::vector<torch::Tensor>& buffers) {
  if (buffers.empty()) return;
  for (Item& item : items_) item.buffer.tensor = buffers.at(item.number);
}

void PackedBuffers::check_unchanged() const {
  for (const Item& item : items_) {
    const torch::Tensor& now = item.buffer.tensor;
    const bool same = now.sizes() == item.sizes && now.scalar_type() == item.dtype &&
                      static_cast<std::int64_t>(packed_bytes(now)) == item.bytes;
    TORCH_CHECK_VALUE(same, "rank ", backend_.rank(), ": buffer '", item.buffer.name, "' is ", now.scalar_type(), ' ',
                      now.sizes(), " now, expected ", item.dtype, ' ', torch::IntArrayRef(item.sizes),
                      ", as when the model was wrapped; wrap it again after changing its shape, on every rank, or set "
                      "broadcast_buffers to false");
  }
}

void PackedBuffers::copy(bool pack) {
  const torch::NoGradGuard no_grad;
  check_unchanged();
  Copies copies;
  for (const Item& item : items_) {
    const torch::Tensor tensor = distinct(item.buffer.tensor);
    if (packed_.is_cpu() && is_plain_memory(tensor)) {
      void* const place = item.place.mutable_data_ptr();
      pack ? std::memcpy(place, tensor.const_data_ptr(), item.bytes)
           : std::memcpy(tensor.mutable_data_ptr(), place, item.bytes);
      continue;
    }
    const torch::Tensor place = item.place.view(tensor.sizes());
    // Without a change of the version, as above: a graph that has saved the buffer can still run backward.
    pack ? copies.add(place, tensor) : copies.add(tensor.variable_data(), place);
  }
  copies.run();
}

void PackedBuffers::start(int source) {
  if (empty()) return;
  finish();
  check_unchanged();  // on every rank, not only on the source
  source_ = source;
  if (backend_.rank() == source) copy(/*pack=*/true);
  static const TextNumber kLabel = number_of_label("DDP: buffers");
  const CallLabel label(kLabel);
  work_ = backend_.start_broadcast(packed_, source);
}

void PackedBuffers::finish() {
  if (!work_) return;
  std::exchange(work_, nullptr)->wait();
  if (backend_.rank() != source_) copy(/*pack=*/false);
}

// LibTorch counts how often a tensor is written, but not what batch_norm writes to running means. So this compares the
// values.
bool PackedBuffers::changed() const {
  if (empty() || backend_.rank() != source_) return false;
  const torch::NoGradGuard no_grad;
  return std::any_of(items_.begin(), items_.end(), [](const Item& item) {
    torch::Tensor now = distinct(item.buffer.tensor);
    if (static_cast<std::int64_t>(now.nbytes()) != item.bytes) return true;
    if (!is_plain_memory(now)) now = now.cpu().resolve_conj().resolve_neg().contiguous();
    return std::memcmp(now.const_data_ptr(), item.place.const_data_ptr(), now.nbytes()) != 0;
  });
}

}  // namespace lockstep::nn_detail
