#include "parameter_stream.h"

#include <algorithm>
#include <numeric>

#include "nn/same_memory.h"

namespace lockstep::nn_detail {
namespace {

using Order = std::vector<std::uint8_t>;  // of dimensions in memory, the outermost first

Order c_order(std::int64_t dims) {
  Order order(static_cast<std::size_t>(dims));
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  return order;
}

// A tensor with holes or overlaps is sent in C order.
Order memory_order(const torch::Tensor& tensor) {
  Order order = c_order(tensor.dim());
  if (!tensor.is_non_overlapping_and_dense()) return order;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint8_t a, std::uint8_t b) { return tensor.stride(a) > tensor.stride(b); });
  return order;
}

// Of a tensor without holes whose dimensions have this order in memory.
std::vector<std::int64_t> strides_of(torch::IntArrayRef sizes, const Order& order) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t next = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = next;
    next *= sizes[order[i]];
  }
  return strides;
}

// Whether the tensor's memory is what is sent.
bool is_as_sent(const torch::Tensor& tensor, torch::IntArrayRef strides) {
  return !tensor.is_conj() && !tensor.is_neg() && same_strides(tensor.sizes(), tensor.strides(), strides);
}

}  // namespace

ParameterStream::ParameterStream(const std::vector<torch::Tensor>& parameters, int rank, bool is_mine, bool is_cpu)
    : rank_(rank), is_mine_(is_mine) {
  std::vector<std::uint8_t> head;
  for (const torch::Tensor& parameter : parameters) {
    if (parameter.numel() == 0) continue;
    const Order order = is_mine && is_cpu ? memory_order(parameter) : c_order(parameter.dim());
    items_.push_back({parameter.detach(), strides_of(parameter.sizes(), order)});
    left_ += static_cast<std::int64_t>(parameter.nbytes());
    if (!is_cpu) continue;
    head.push_back(static_cast<std::uint8_t>(order.size()));
    head.insert(head.end(), order.begin(), order.end());
  }
  head_ = torch::tensor(head, torch::kByte);
  left_ += head_.numel();
}

void ParameterStream::advance(const torch::Tensor& block) {
  std::int64_t done = advance_head(block);
  while (done < block.numel()) {
    Item& item = items_[next_];
    if (offset_ == 0) begin(item);
    const std::int64_t count = std::min(item.bytes.numel() - offset_, block.numel() - done);
    move(item.bytes.narrow(0, offset_, count), block.narrow(0, done, count));
    done += count;
    offset_ += count;
    if (offset_ < item.bytes.numel()) continue;
    end(item);
    offset_ = 0;
    ++next_;
  }
  left_ -= done;
}

// Returns how many bytes of the block are the head's.
std::int64_t ParameterStream::advance_head(const torch::Tensor& block) {
  const std::int64_t count = std::min(head_.numel() - head_done_, block.numel());
  if (count == 0) return 0;
  move(head_.narrow(0, head_done_, count), block.narrow(0, 0, count));
  head_done_ += count;
  if (head_done_ == head_.numel() && !is_mine_) take_orders();
  return count;
}

void ParameterStream::take_orders() {
  const std::uint8_t* next = head_.const_data_ptr<std::uint8_t>();
  for (Item& item : items_) {
    const std::int64_t dims = item.parameter.dim();
    TORCH_CHECK_VALUE(*next == dims, "ZeroRedundancyOptimizer: rank ", rank_, " sends a parameter of ", int{*next},
                      " dimensions where this rank has one of size ", item.parameter.sizes(),
                      "; all ranks need the same parameters in the same order");
    const Order order(next + 1, next + 1 + dims);
    const Order all = c_order(dims);
    TORCH_CHECK_VALUE(std::is_permutation(order.begin(), order.end(), all.begin()),
                      "ZeroRedundancyOptimizer: what rank ", rank_, " sends for a parameter of size ",
                      item.parameter.sizes(),
                      " is no order of its dimensions; all ranks need the same parameters in the same order");
    item.strides = strides_of(item.parameter.sizes(), order);
    next += 1 + dims;
  }
}

void ParameterStream::begin(Item& item) const {
  item.plain = is_as_sent(item.parameter, item.strides)
                   ? item.parameter
                   : torch::empty_strided(item.parameter.sizes(), item.strides, item.parameter.options());
  item.bytes = item.plain.as_strided({item.plain.numel()}, {1}).view(torch::kByte);
  if (is_mine_ && !item.is_direct()) item.plain.copy_(item.parameter);
}

void ParameterStream::end(Item& item) const {
  if (!is_mine_ && !item.is_direct()) item.parameter.copy_(item.plain);
  item.plain.reset();
  item.bytes.reset();
}

void ParameterStream::move(const torch::Tensor& bytes, const torch::Tensor& place) const {
  is_mine_ ? place.copy_(bytes) : bytes.copy_(place);
}

}  // namespace lockstep::nn_detail
