#include "c10d/backend/call_checks.h"

#include <numeric>

#include "c10d/backend/group_errors.h"
#include "c10d/backend/staging.h"
#include "c10d/backend/tensor_rules.h"
#include "lockstep/c10d/errors.h"

namespace lockstep {
namespace {

// The factor travels as a double or as a tensor of one element.
double premul_factor(const CallChecks& checks, const c10d::ReduceOp& op) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) checks.reject("PREMUL_SUM without a factor: make it with lockstep::premul_sum(factor)");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>() : supplement->double_factor;
}

}  // namespace

std::string describe_member(int rank, const std::string& group, const std::vector<int>& global_ranks) {
  std::string text = fmt::format("rank {}", rank);
  if (!global_ranks.empty() && global_ranks[rank] != rank)
    text += fmt::format(" (rank {} of the world)", global_ranks[rank]);
  return fmt::format("{}, group '{}'", text, group);
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    const char* comma = text.empty() ? "" : ",";
    if (last >= i + 2) {
      text += fmt::format("{}{}-{}", comma, ranks[i], ranks[last]);
    } else {
      text += fmt::format("{}{}", comma, ranks[i]);
      last = i;
    }
    i = last + 1;
  }
  return text;
}

std::string explain_ranks(const std::vector<int>& global_ranks) {
  std::vector<int> own(global_ranks.size());
  std::iota(own.begin(), own.end(), 0);
  if (own == global_ranks) return {};
  return fmt::format(". These are ranks of the group: ranks {} of the group are ranks {} of the world", ranks_text(own),
                     ranks_text(global_ranks));
}

void CallChecks::reject_text(const std::string& text) const {
  throw ArgumentError(ErrorCode::kInvalidArgument, fmt::format("{}, {}: {}", who_, operation_, text));
}

std::string CallChecks::reason_to_refuse(const std::exception& error) const {
  const std::string text = plain_text(error);
  const std::string speaker = who_ + ", ";
  if (text.starts_with(speaker)) return text.substr(speaker.size());
  return fmt::format("{}: {}", operation_, text);
}

const at::Tensor& CallChecks::only(const std::vector<at::Tensor>& tensors, const char* name, const char* words) const {
  check_count(tensors.size(), 1, name, words);
  return tensors.front();
}

void CallChecks::check_count(std::size_t count, std::size_t expected, const char* name, const char* words) const {
  if (count != expected) reject("`{}` must have {} tensor(s), found {}: {}", name, expected, count, words);
}

void CallChecks::check_root(std::int64_t root) const {
  if (root < 0 || root >= group_size_) {
    reject("invalid root rank: {}; the root must be a rank of the group, 0 to {}", root, group_size_ - 1);
  }
}

void CallChecks::check_root_tensor(std::int64_t index, std::size_t count) const {
  if (index < 0 || index >= static_cast<std::int64_t>(count)) {
    reject("invalid root tensor: {}; found {} tensor(s)", index, count);
  }
}

void CallChecks::check_alike(const std::vector<at::Tensor>& tensors, const char* name, const char* words) const {
  if (tensors.empty()) reject("`{}` is empty: {}", name, words);
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    for (const at::Tensor& tensor : {tensors[0], tensors[i]}) {
      if (!tensor.defined()) reject("`{}` has an undefined tensor", name);
    }
    check_same_dtype(tensors[i], name, tensors[0], name, i);
    if (tensors[i].sizes() != tensors[0].sizes()) {
      reject("`{}`: invalid tensor size at index {} (expected {}, got {})", name, i, c10::str(tensors[0].sizes()),
             c10::str(tensors[i].sizes()));
    }
    if (tensors[i].device() != tensors[0].device()) {
      reject("`{}`: tensors should be on the same device, found {} and {}", name, tensors[0].device().str(),
             tensors[i].device().str());
    }
  }
}

void CallChecks::check_root_lists(const std::vector<std::vector<at::Tensor>>& lists, const char* name, const char* way,
                                  int rank, std::int64_t root) const {
  if (rank != root) {
    if (!lists.empty()) {
      reject("`{}` is for the root, rank {}; leave it empty elsewhere: requires empty {} on non-root", name, root, way);
    }
    return;
  }
  if (lists.size() != 1) {
    reject("`{}` must be one list, found {}: requires a single-element {} list containing a list with {} tensors", name,
           lists.size(), way, group_size_);
  }
  if (lists.front().size() != static_cast<std::size_t>(group_size_)) {
    reject("`{}` must have {} tensor(s), found {}: Incorrect {} list size {}", name, group_size_, lists.front().size(),
           way, lists.front().size());
  }
}

void CallChecks::check_peer(int peer, const char* what) const {
  if (peer >= 0 && peer < group_size_) return;
  reject("the {} must be a rank of the group, 0 to {}, found {}", what, group_size_ - 1, peer);
}

void CallChecks::check_tag(int tag) const {
  if (tag < 0) reject("the tag must not be negative, found {}", tag);
}

void CallChecks::check_same_dtype(const at::Tensor& a, const char* a_name, const at::Tensor& b, const char* b_name,
                                  std::size_t index) const {
  if (a.scalar_type() == b.scalar_type()) return;
  reject("`{}` and `{}` must have the same dtype, found {} and {}: invalid tensor type at index {}", a_name, b_name,
         c10::toString(a.scalar_type()), c10::toString(b.scalar_type()), index);
}

void CallChecks::check_elements(const at::Tensor& tensor, const char* name, std::int64_t expected,
                                const char* why) const {
  if (tensor.numel() == expected) return;
  reject("`{}` must have {} elements ({}), found {} in shape {}", name, expected, why, tensor.numel(),
         c10::str(tensor.sizes()));
}

void CallChecks::check_readable(const at::Tensor& tensor, const char* name) const {
  if (!tensor.defined()) reject("`{}` is an undefined tensor", name);
  if (!can_stage(tensor.device().type())) {
    reject("`{}` must be a CPU or CUDA tensor, found one on {}; copy it with .cpu()", name, tensor.device().str());
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested()) {
    reject("`{}` must be a dense tensor, found layout {}; convert it with .to_dense(): only supports dense tensors",
           name, tensor.is_nested() ? std::string("Nested") : c10::str(tensor.layout()));
  }
}

void CallChecks::check_writable(const at::Tensor& tensor, const char* name) const {
  check_readable(tensor, name);
  if (tensor._is_zerotensor())
    reject("`{}` receives data, but is a ZeroTensor, which has no memory; use clone()", name);
  if (!is_plain_memory(tensor) && may_overlap_itself(tensor)) {
    reject(
        "`{}` receives data, but several of its elements share memory (shape {}, strides {}), as after expand(); use "
        "clone()",
        name, c10::str(tensor.sizes()), c10::str(tensor.strides()));
  }
}

CallChecks::Reduction CallChecks::reduction(const c10d::ReduceOp& op, at::ScalarType dtype) const {
  if (op.op_ >= c10d::ReduceOp::UNUSED) reject("{} is not a reduction", static_cast<int>(op.op_));
  const Reduction result{data_type(dtype), static_cast<comm::ReduceOp>(op.op_),
                         op.op_ == c10d::ReduceOp::PREMUL_SUM ? premul_factor(*this, op) : 1.0};
  if (result.type == comm::DataType::kByte || !comm::is_supported(result.type, result.op)) {
    reject("{} is not defined for tensors of dtype {}", comm::to_string(result.op), c10::toString(dtype));
  }
  return result;
}

std::vector<std::int64_t> CallChecks::split_elements(const at::Tensor& tensor, const char* name,
                                                     const std::vector<std::int64_t>& splits) const {
  const auto size = static_cast<std::size_t>(group_size_);
  if (tensor.dim() == 0) reject("`{}` must have a first dimension to split, found a scalar", name);
  const std::int64_t rows = tensor.size(0);
  if (splits.empty()) {
    if (rows % group_size_ != 0) {
      reject(
          "the first dimension of `{}` must divide by {} ranks, found {}; give splits: Tensor's dim 0 does not divide "
          "equally across group size",
          name, size, rows);
    }
    return std::vector<std::int64_t>(size, tensor.numel() / group_size_);
  }
  if (splits.size() != size) {
    reject("there must be a split of `{}` per rank ({}), found {}: Number of tensor splits not equal to group size",
           name, size, splits.size());
  }
  const std::int64_t sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (sum != rows) {
    reject(
        "the splits of `{}` must add up to its first dimension, {}, found {}: Split sizes doesn't match total dim 0 "
        "size",
        name, rows, sum);
  }
  std::vector<std::int64_t> elements;
  for (const std::int64_t split : splits) {
    if (split < 0) reject("a split of `{}` is negative, {}: Split sizes must be non-negative", name, split);
    elements.push_back(rows == 0 ? 0 : tensor.numel() / rows * split);
  }
  return elements;
}

}  // namespace lockstep
