#include "shard_exchange.h"

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

// The parameters of one rank's share as a stream of bytes, which ShardExchange cuts into blocks.
//
// On the CPU the stream has a head: for each parameter the number of its dimensions, and their order in the memory of
// the rank that sends. So memory is sent as it lies there (channels-last or not), and where the others have the same
// layout, as they usually do, nothing is transposed. On other devices, which transpose fast and would have to wait for
// the head, all is sent in C order, and there is no head. A parameter whose memory is not what is sent needs a copy
// meanwhile. Only one such copy exists at a time.
class ParameterStream {
 public:
  // `rank`: whose parameters these are, for errors. `is_mine`: this rank's, so they are read, else written.
  ParameterStream(const std::vector<torch::Tensor>& parameters, int rank, bool is_mine, bool is_cpu);

  // The bytes that are still to come. The same on all ranks.
  std::int64_t left() const { return left_; }

  // The next bytes: from the parameters into `block` if they are this rank's, else from `block` into the parameters,
  // where one that needs a copy changes only when all its bytes are there. Throws if the head shows that the ranks have
  // different parameters.
  void advance(const torch::Tensor& block);

 private:
  struct Item {
    torch::Tensor parameter;
    std::vector<std::int64_t> strides;  // as it is sent
    torch::Tensor plain = {};  // the parameter itself, or a copy as it is sent; from its first byte to its last
    torch::Tensor bytes = {};  // of `plain`

    bool is_direct() const { return plain.is_alias_of(parameter); }
  };

  std::int64_t advance_head(const torch::Tensor& block);
  void take_orders();
  void begin(Item& item) const;
  void end(Item& item) const;
  void move(const torch::Tensor& bytes, const torch::Tensor& place) const;

  int rank_;
  bool is_mine_;
  torch::Tensor head_;
  std::int64_t head_done_ = 0;
  std::vector<Item> items_;
  std::size_t next_ = 0;
  std::int64_t offset_ = 0;  // in items_[next_]
  std::int64_t left_ = 0;
};

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

// How many bytes each stream puts into a block: streams that have bytes left share the block equally.
std::vector<std::int64_t> lengths(const std::vector<ParameterStream>& streams, std::int64_t cap) {
  const auto with_data = std::count_if(streams.begin(), streams.end(), [](const auto& one) { return one.left() > 0; });
  if (with_data == 0) return {};
  std::vector<std::int64_t> result;
  result.reserve(streams.size());
  for (const ParameterStream& stream : streams) {
    result.push_back(std::min(stream.left(), std::max<std::int64_t>(cap / with_data, 1)));
  }
  return result;
}

}  // namespace

torch::Tensor ShardExchange::buffer_of(std::int64_t bytes) {
  if (!buffer_.defined() || buffer_.numel() < bytes) {
    buffer_.reset();  // its memory first
    buffer_ = backend_.allocate(bytes, torch::kByte);
  }
  return buffer_;
}

void ShardExchange::run(const std::vector<std::vector<torch::Tensor>>& parameters) {
  const torch::NoGradGuard no_grad;
  const auto me = static_cast<std::size_t>(backend_.rank());
  std::vector<ParameterStream> streams;
  for (std::size_t rank = 0; rank < parameters.size(); ++rank) {
    streams.emplace_back(parameters[rank], static_cast<int>(rank), rank == me, backend_.device().is_cpu());
  }
  for (std::vector<std::int64_t> next; !(next = lengths(streams, cap_)).empty();) {
    std::int64_t bytes = 0;
    for (const std::int64_t length : next) bytes += length;
    const torch::Tensor buffer = buffer_of(bytes);
    std::vector<torch::Tensor> blocks;
    std::int64_t begin = 0;
    for (const std::int64_t length : next) {
      blocks.push_back(buffer.narrow(0, begin, length));
      begin += length;
    }
    streams[me].advance(blocks[me]);
    backend_.all_gather_parts(blocks);
    for (std::size_t rank = 0; rank < streams.size(); ++rank) {
      if (rank != me) streams[rank].advance(blocks[rank]);
    }
  }
}

}  // namespace lockstep::nn_detail
