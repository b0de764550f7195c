#include "staging.h"

#include <fmt/format.h>

#include <utility>

#include "error_context.h"
#include "lockstep/checkpoint/errors.h"
#include "parallel_copy.h"
#include "tensor_rules.h"

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

// Uninitialized.
torch::Tensor fresh_memory(const torch::Tensor& tensor) {
  torch::Tensor memory = torch::empty(tensor.sizes(), torch::dtype(tensor.scalar_type()));
  prefer_huge_pages(memory.mutable_data_ptr(), memory.nbytes());
  return memory;
}

// By LibTorch: devices, views, lazy values.
torch::Tensor copied(const torch::Tensor& tensor, const torch::Tensor& old) {
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
  for (const auto& entry : tensors) {
    const std::string& name = entry.first;
    const torch::Tensor& tensor = entry.second;
    const auto before = kept.find(name);
    const torch::Tensor old = before == kept.end() ? torch::Tensor() : before->second;
    staged.tensors[name] = in_context(fmt::format("{}: tensor \"{}\"", origin, name), [&] {
      if (!is_plain(tensor)) return copied(tensor, old);
      torch::Tensor to = fits(old, tensor) && old.is_contiguous() ? old : fresh_memory(tensor);
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
