#include "lockstep/nn/scatter.h"

#include <ATen/WrapDimUtils.h>
#include <fmt/format.h>

#include "base/arithmetic.h"

namespace lockstep::parallel::detail {

// "argument 1", "argument 1[2]", "argument 1, 'mask'".
std::string Path::text() const {
  const std::string before = outer == nullptr ? std::string() : outer->text();
  if (outer == nullptr && name.empty()) return "value";
  if (name.empty()) return fmt::format("{}[{}]", before, number);
  const std::string here = number >= 0        ? fmt::format("{} {}", name, number)
                           : outer == nullptr ? std::string(name)
                                              : fmt::format("'{}'", name);
  return before.empty() ? here : fmt::format("{}, {}", before, here);
}

void structures_differ(const Path& path, std::size_t replica, std::string_view what) {
  TORCH_CHECK_VALUE(false, path.text(), ": the results of replica 0 and replica ", replica,
                    " cannot be put together: one has ", what,
                    ". Return what differs between parts of a batch as a tensor");
}

std::vector<std::int64_t> chunk_lengths(std::int64_t rows, std::size_t parts) {
  const auto count = static_cast<std::int64_t>(parts);
  if (rows == 0) return std::vector<std::int64_t>(parts, 0);
  const std::int64_t length = ceil_divide(rows, count);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(rows / length), length);
  if (rows % length != 0) lengths.push_back(rows % length);
  return lengths;
}

bool is_split(const Tensors& found, std::size_t index) {
  const torch::Tensor& tensor = found.tensors[index];
  return tensor.defined() && tensor.dim() > 0 && !found.whole[index];
}

std::vector<std::int64_t> plan_split(const Tensors& found, std::size_t parts, std::int64_t dim) {
  TORCH_CHECK_VALUE(parts > 0, "scatter: expected at least one device, got none");
  std::optional<std::size_t> first;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    if (!is_split(found, i)) continue;
    const torch::Tensor& tensor = found.tensors[i];
    TORCH_CHECK_VALUE(dim >= -tensor.dim() && dim < tensor.dim(), found.names[i], ": a tensor of shape ",
                      tensor.sizes(), " cannot be split along dimension ", dim,
                      "; to give the whole tensor to every replica, pass lockstep::parallel::replicated(tensor)");
    TORCH_CHECK_VALUE(tensor.layout() == torch::kStrided, found.names[i], ": a tensor of layout ", tensor.layout(),
                      " cannot be split; to give the whole tensor to every replica, pass "
                      "lockstep::parallel::replicated(tensor)");
    if (!first) {
      first = i;
      rows = tensor.size(dim);
    }
    TORCH_CHECK_VALUE(tensor.size(dim) == rows, found.names[i], ": has ", tensor.size(dim), " rows in dimension ", dim,
                      ", but ", found.names[*first], " has ", rows,
                      "; tensors that are split need the same number. To give a whole tensor to every replica, pass "
                      "lockstep::parallel::replicated(tensor)");
  }
  return first ? chunk_lengths(rows, parts) : std::vector<std::int64_t>();
}

torch::Tensor part_of(const Tensors& found, std::size_t index, const std::vector<std::int64_t>& lengths,
                      std::size_t part, std::int64_t dim) {
  const torch::Tensor& tensor = found.tensors[index];
  if (!is_split(found, index)) return tensor;
  std::int64_t start = 0;
  for (std::size_t before = 0; before < part; ++before) start += lengths[before];
  return tensor.narrow(dim, start, lengths[part]);
}

void check_parts(const std::vector<torch::Tensor>& parts, std::int64_t dim, const std::string& name) {
  const torch::Tensor& first = parts.front();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const torch::Tensor& part = parts[i];
    bool fits = part.dim() == first.dim() && (part.dim() == 0 || (dim < part.dim() && dim >= -part.dim()));
    for (std::int64_t other = 0; fits && other < part.dim(); ++other)
      fits = other == at::maybe_wrap_dim(dim, part.dim()) || part.size(other) == first.size(other);
    TORCH_CHECK_VALUE(fits, name, ": shapes ", first.sizes(), " of replica 0 and ", part.sizes(), " of replica ", i,
                      " cannot be put together along dimension ", dim);
  }
}

torch::Tensor join(const std::vector<torch::Tensor>& parts, torch::Device device, std::int64_t dim,
                   const std::string& name) {
  if (!parts.front().defined()) return {};
  check_parts(parts, dim, name);
  std::vector<torch::Tensor> moved;
  moved.reserve(parts.size());
  for (const torch::Tensor& part : parts) moved.push_back(part.to(device));
  if (moved.front().dim() == 0) return torch::stack(moved);
  return moved.size() == 1 ? moved.front() : torch::cat(moved, dim);
}

void check_is_on(torch::Device device, const torch::Tensor& tensor, const Path& path) {
  TORCH_CHECK_VALUE(!tensor.defined() || tensor.device() == device, path.text(), ": is on ", tensor.device(),
                    ", but the module is on ", device,
                    ", and this value cannot be copied there; move its tensors first, or pass it by std::move");
}

}  // namespace lockstep::parallel::detail
