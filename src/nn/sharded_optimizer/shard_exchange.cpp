#include "shard_exchange.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <numeric>
#include <span>

namespace lockstep::nn_detail {
namespace {

// The dimensions from the outermost in memory to the innermost. A tensor with holes or overlaps is sent in C order.
std::vector<std::int64_t> memory_order(const torch::Tensor& tensor) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(tensor.dim()));
  std::iota(order.begin(), order.end(), 0);
  if (!tensor.is_non_overlapping_and_dense()) return order;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  return order;
}

// Of a tensor without holes whose dimensions have this order in memory. C order, if the program has given the parameter
// other dimensions since the ranks agreed on the order.
std::vector<std::int64_t> strides_of(torch::IntArrayRef sizes, std::span<const std::int64_t> order) {
  if (order.size() != sizes.size()) {
    const auto strides = c10::contiguous_strides(sizes);
    return {strides.begin(), strides.end()};
  }
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t next = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto dim = static_cast<std::size_t>(order[i]);
    strides[dim] = next;
    next *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return strides;
}

// Whether the tensor's memory is what is sent.
bool is_as_sent(const torch::Tensor& tensor, torch::IntArrayRef strides) {
  if (tensor.is_conj() || tensor.is_neg()) return false;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) != strides[static_cast<std::size_t>(dim)]) return false;
  }
  return true;
}

}  // namespace

// Reads or writes the bytes of a rank's parameters in order, as one stream. A parameter whose memory is not what is
// sent needs a copy meanwhile. Only one such copy exists at a time.
class ShardExchange::ByteStream {
 public:
  // `order`: of the parameter's dimensions, as it is sent.
  void add(const torch::Tensor& parameter, std::span<const std::int64_t> order) {
    items_.push_back({parameter.detach(), strides_of(parameter.sizes(), order), {}, {}});
    left_ += static_cast<std::int64_t>(parameter.nbytes());
  }

  std::int64_t left() const { return left_; }

  // The next bytes go into `block`.
  void read(const torch::Tensor& block) {
    advance(
        block,
        [](const Item& item) {
          if (!item.is_direct()) item.plain.copy_(item.parameter);
        },
        [](const torch::Tensor& bytes, const torch::Tensor& place) { place.copy_(bytes); }, [](const Item&) {});
  }
  // Writes `block` to the next bytes. A parameter that needs a copy changes only when all its bytes are there.
  void write(const torch::Tensor& block) {
    advance(
        block, [](const Item&) {}, [](const torch::Tensor& bytes, const torch::Tensor& place) { bytes.copy_(place); },
        [](const Item& item) {
          if (!item.is_direct()) item.parameter.copy_(item.plain);
        });
  }

 private:
  struct Item {
    torch::Tensor parameter;
    std::vector<std::int64_t> strides;  // as it is sent
    torch::Tensor plain;  // the parameter itself, or a copy as it is sent; from its first byte to its last
    torch::Tensor bytes;  // of `plain`

    bool is_direct() const { return plain.is_alias_of(parameter); }
  };

  template <typename Begin, typename Copy, typename Complete>
  void advance(const torch::Tensor& block, const Begin& begin, const Copy& copy, const Complete& complete) {
    std::int64_t done = 0;
    while (done < block.numel()) {
      Item& item = items_[next_];
      if (offset_ == 0) {
        item.plain = is_as_sent(item.parameter, item.strides)
                         ? item.parameter
                         : torch::empty_strided(item.parameter.sizes(), item.strides, item.parameter.options());
        item.bytes = item.plain.as_strided({item.plain.numel()}, {1}).view(torch::kByte);
        begin(item);
      }
      const std::int64_t count = std::min(item.bytes.numel() - offset_, block.numel() - done);
      copy(item.bytes.narrow(0, offset_, count), block.narrow(0, done, count));
      done += count;
      offset_ += count;
      if (offset_ == item.bytes.numel()) {
        complete(item);
        item.plain.reset();
        item.bytes.reset();
        offset_ = 0;
        ++next_;
      }
    }
    left_ -= done;
  }

  std::vector<Item> items_;
  std::size_t next_ = 0;
  std::int64_t offset_ = 0;  // in items_[next_]
  std::int64_t left_ = 0;
};

// How many bytes each stream puts into a block: streams that have bytes left share the block equally.
std::vector<std::int64_t> ShardExchange::lengths(const std::vector<ByteStream>& streams, std::int64_t cap) {
  const auto with_data = std::count_if(streams.begin(), streams.end(), [](const auto& one) { return one.left() > 0; });
  if (with_data == 0) return {};
  std::vector<std::int64_t> result;
  result.reserve(streams.size());
  for (const ByteStream& stream : streams) {
    result.push_back(std::min(stream.left(), std::max<std::int64_t>(cap / with_data, 1)));
  }
  return result;
}

// Every rank passes the same parameters, or the sizes of the all-gathers would differ too.
void ShardExchange::agree_on_orders(const std::vector<torch::Tensor>& parameters) {
  std::vector<std::int64_t> mine;
  for (const torch::Tensor& parameter : parameters) {
    const Order order = memory_order(parameter);
    mine.insert(mine.end(), order.begin(), order.end());
  }
  // An all-gather, not rank 0's broadcast: if a rank refuses the step, no other one must believe that all have agreed.
  torch::Tensor orders = torch::tensor(mine, torch::kInt64).to(backend_.device());
  if (!mine.empty()) orders = backend_.all_gather(orders)[0];
  orders = orders.cpu();
  const std::int64_t* next = orders.const_data_ptr<std::int64_t>();
  orders_.clear();
  for (const torch::Tensor& parameter : parameters) {
    orders_.emplace_back(next, next + parameter.dim());
    next += parameter.dim();
  }
  agreed_ = parameters;
}

std::vector<ShardExchange::ByteStream> ShardExchange::streams_of(
    const std::vector<std::vector<torch::Tensor>>& parameters) {
  std::vector<torch::Tensor> all;
  for (const auto& share : parameters) {
    std::copy_if(share.begin(), share.end(), std::back_inserter(all), [](const auto& one) { return one.numel() > 0; });
  }
  const bool same = std::equal(all.begin(), all.end(), agreed_.begin(), agreed_.end(),
                               [](const torch::Tensor& a, const torch::Tensor& b) { return a.is_same(b); });
  if (!same) agree_on_orders(all);
  std::vector<ByteStream> streams(parameters.size());
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < parameters.size(); ++rank) {
    for (const torch::Tensor& parameter : parameters[rank]) {
      if (parameter.numel() > 0) streams[rank].add(parameter, orders_[next++]);
    }
  }
  return streams;
}

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
  std::vector<ByteStream> streams = streams_of(parameters);
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
    streams[me].read(blocks[me]);
    backend_.all_gather_parts(blocks);
    for (std::size_t rank = 0; rank < streams.size(); ++rank) {
      if (rank != me) streams[rank].write(blocks[rank]);
    }
  }
}

}  // namespace lockstep::nn_detail
