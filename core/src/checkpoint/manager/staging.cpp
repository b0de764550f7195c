#include "staging.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "base/arithmetic.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/tensor_rules.h"
#include "lockstep/checkpoint/errors.h"
#include "parallel_copy.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kMostThreads = 4;  // more do not make memory faster

// Whether the bytes in memory are the values, one after the other.
bool is_plain(const torch::Tensor& tensor) {
  return why_not_saved(tensor).empty() && tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor._is_zerotensor();
}

bool fits(const torch::Tensor& memory, const torch::Tensor& tensor) {
  return why_not_overwritten(memory).empty() && memory.sizes() == tensor.sizes() && memory.dtype() == tensor.dtype() &&
         memory.device() == tensor.device();
}

// Memory for the copies of several tensors, in one block: with huge pages all of it has some, while most tensors by
// themselves are too small for a whole one.
class Block {
 public:
  void add(const torch::Tensor& tensor) { bytes_ += padded(tensor.nbytes()); }
  void allocate() {
    if (bytes_ == 0) return;
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    const std::size_t alignment = bytes_ < kHugePage ? kAlignment : kHugePage;
    void* const data = std::aligned_alloc(alignment, padded(bytes_, alignment));
    if (data == nullptr) throw std::bad_alloc();
    memory_ = std::shared_ptr<void>(data, std::free);
    prefer_huge_pages(data, bytes_);
  }
  // Uninitialized memory of the shape and dtype of `tensor`, which has been added. Each has a storage of its own.
  torch::Tensor take(const torch::Tensor& tensor) {
    if (tensor.numel() == 0) return torch::empty(tensor.sizes(), torch::dtype(tensor.scalar_type()));
    void* const place = static_cast<std::byte*>(memory_.get()) + taken_;
    taken_ += padded(tensor.nbytes());
    const auto release = [memory = memory_](void*) {};
    return torch::from_blob(place, tensor.sizes(), release, torch::dtype(tensor.scalar_type()));
  }

 private:
  static constexpr std::size_t kAlignment = 64;  // as LibTorch's own memory
  static std::size_t padded(std::size_t bytes, std::size_t to = kAlignment) { return round_up(bytes, to); }

  std::size_t bytes_ = 0;
  std::size_t taken_ = 0;
  std::shared_ptr<void> memory_;
};

// Whether the bytes of `tensor` can be copied to `memory`.
bool is_reused(const torch::Tensor& memory, const torch::Tensor& tensor) {
  return fits(memory, tensor) && memory.is_contiguous();
}

// By LibTorch: devices, views, lazy values.
torch::Tensor copied(const torch::Tensor& tensor, const torch::Tensor& old) {
  if (!tensor.defined()) return tensor;  // which write_tensor_file() refuses
  if (!why_not_saved(tensor).empty() || !fits(old, tensor)) return tensor.detach().clone();
  const torch::NoGradGuard no_grad;
  old.copy_(tensor);
  return old;
}

bool changes_in_steps_only(const std::string& name, const torch::Tensor& tensor) {
  return name.starts_with("optimizer.") || tensor.requires_grad();
}

std::uint32_t version_of(const torch::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

void make_copies(const std::vector<PendingCopy>& copies, int threads) {
  std::vector<CopyPart> parts;
  for (const PendingCopy& copy : copies) {
    if (copy.from.nbytes() == 0) continue;
    parts.push_back({copy.to.mutable_data_ptr(), copy.from.const_data_ptr(), copy.from.nbytes()});
  }
  copy_all(parts, threads);
}

}  // namespace

Staged stage(const Tensors& tensors, Tensors& kept, bool overlap, const std::string& origin) {
  Staged staged;
  std::vector<PendingCopy> now;
  const auto old_copy = [&](const std::string& name) {
    const auto before = kept.find(name);
    return before == kept.end() ? torch::Tensor() : before->second;
  };
  Block fresh;
  for (const auto& [name, tensor] : tensors) {
    if (is_plain(tensor) && !is_reused(old_copy(name), tensor)) fresh.add(tensor);
  }
  in_context(origin, [&] { fresh.allocate(); });
  for (const auto& entry : tensors) {
    const std::string& name = entry.first;
    const torch::Tensor& tensor = entry.second;
    const torch::Tensor old = old_copy(name);
    staged.tensors[name] = in_context(fmt::format("{}: tensor \"{}\"", origin, name), [&] {
      if (!is_plain(tensor)) return copied(tensor, old);
      torch::Tensor to = is_reused(old, tensor) ? old : fresh.take(tensor);
      auto& list = overlap && changes_in_steps_only(name, tensor) ? staged.pending : now;
      list.push_back({name, tensor.detach(), to, version_of(tensor)});
      return to;
    });
  }
  make_copies(now, kMostThreads);
  // Another thread writes them, and does not know the stream of the copies on devices.
  in_context(origin, [&] {
    for (const auto& entry : staged.tensors) wait_for_copy(entry.second);
  });
  kept = staged.tensors;
  return staged;
}

void copy_pending(const std::vector<PendingCopy>& pending, const std::string& origin) {
  make_copies(pending, 1);
  for (const PendingCopy& copy : pending) {
    if (version_of(copy.from) == copy.version) continue;
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: tensor \"{}\" was changed while it was copied: call wait_copied() before optimizer.step()",
                    origin, copy.name));
  }
}

}  // namespace lockstep::checkpoint
