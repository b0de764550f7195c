#include "shard_exchange.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

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
  if (tensor.is_conj() || tensor.is_neg()) return false;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) > 1 && tensor.stride(dim) != strides[static_cast<std::size_t>(dim)]) return false;
  }
  return true;
}

// A rank's parameters as one stream of bytes. On the CPU its head has, for each parameter, the number of dimensions and
// their order in the memory of the rank that sends. So memory is sent as it lies there (channels-last or not), and
// where the others have the same layout, as they usually do, nothing is transposed. On other devices, which transpose
// fast and would have to wait for the head, all is sent in C order, and there is no head. A parameter whose memory is
// not what is sent needs a copy meanwhile. Only one such copy exists at a time.
class ByteStream {
 public:
  ByteStream(const std::vector<torch::Tensor>& parameters, int rank, bool is_mine, bool is_cpu)
      : rank_(rank), is_mine_(is_mine) {
    std::vector<std::uint8_t> head;
    for (const torch::Tensor& parameter : parameters) {
      if (parameter.numel() == 0) continue;
      const Order order = is_mine && is_cpu ? memory_order(parameter) : c_order(parameter.dim());
      items_.push_back({parameter.detach(), strides_of(parameter.sizes(), order), {}, {}});
      left_ += static_cast<std::int64_t>(parameter.nbytes());
      if (!is_cpu) continue;
      head.push_back(static_cast<std::uint8_t>(order.size()));
      head.insert(head.end(), order.begin(), order.end());
    }
    head_ = torch::tensor(head, torch::kByte);
    left_ += head_.numel();
  }

  std::int64_t left() const { return left_; }

  // The next bytes go into `block`. For the stream of this rank.
  void read(const torch::Tensor& block) {
    advance(
        block,
        [](const Item& item) {
          if (!item.is_direct()) item.plain.copy_(item.parameter);
        },
        [](const torch::Tensor& bytes, const torch::Tensor& place) { place.copy_(bytes); }, [](const Item&) {});
  }
  // Writes `block` to the next bytes. A parameter that needs a copy changes only when all its bytes are there. For the
  // stream of another rank.
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
    std::int64_t done = advance_head(block, copy);
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

  // Returns how many bytes of the block are the head's.
  template <typename Copy>
  std::int64_t advance_head(const torch::Tensor& block, const Copy& copy) {
    const std::int64_t count = std::min(head_.numel() - head_done_, block.numel());
    if (count == 0) return 0;
    copy(head_.narrow(0, head_done_, count), block.narrow(0, 0, count));
    head_done_ += count;
    if (head_done_ == head_.numel() && !is_mine_) take_orders();
    return count;
  }

  void take_orders() {
    const std::uint8_t* next = head_.const_data_ptr<std::uint8_t>();
    for (Item& item : items_) {
      const std::int64_t dims = item.parameter.dim();
      TORCH_CHECK_VALUE(*next == dims, "ZeroRedundancyOptimizer: rank ", rank_, " sends a parameter of ", int{*next},
                        " dimensions where this rank has one of ", item.parameter.sizes(),
                        "; all ranks need the same parameters in the same order");
      const Order order(next + 1, next + 1 + dims);
      const Order all = c_order(dims);
      TORCH_CHECK_VALUE(std::is_permutation(order.begin(), order.end(), all.begin()), "ZeroRedundancyOptimizer: rank ",
                        rank_, " sends no parameters here; all ranks need the same parameters in the same order");
      item.strides = strides_of(item.parameter.sizes(), order);
      next += 1 + dims;
    }
  }

  int rank_;
  bool is_mine_;
  torch::Tensor head_;
  std::int64_t head_done_ = 0;
  std::vector<Item> items_;
  std::size_t next_ = 0;
  std::int64_t offset_ = 0;  // in items_[next_]
  std::int64_t left_ = 0;
};

// How many bytes each stream puts into a block: streams that have bytes left share the block equally.
std::vector<std::int64_t> lengths(const std::vector<ByteStream>& streams, std::int64_t cap) {
  const auto with_data = std::count_if(streams.begin(), streams.end(), [](const auto& one) { return one.left() > 0; });
  if (with_data == 0) return {};
  std::vector<std::int64_t> result;
  result.reserve(streams.size());
  for (const ByteStream& stream : streams) {
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
  std::vector<ByteStream> streams;
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
    streams[me].read(blocks[me]);
    backend_.all_gather_parts(blocks);
    for (std::size_t rank = 0; rank < streams.size(); ++rank) {
      if (rank != me) streams[rank].write(blocks[rank]);
    }
  }
}

}  // namespace lockstep::nn_detail
