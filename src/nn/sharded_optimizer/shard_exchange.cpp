#include "shard_exchange.h"

#include <algorithm>

namespace lockstep::nn_detail {
namespace {

// Reads or writes the bytes of a rank's parameters in order, as one stream. A parameter that is not contiguous needs a
// contiguous copy meanwhile. Only one such copy exists at a time.
class ByteStream {
 public:
  explicit ByteStream(const std::vector<torch::Tensor>& parameters) {
    for (const torch::Tensor& parameter : parameters) {
      if (parameter.numel() == 0) continue;
      items_.push_back({parameter.detach(), {}, {}});
      left_ += static_cast<std::int64_t>(parameter.nbytes());
    }
  }

  std::int64_t left() const { return left_; }

  // The next bytes go into `block`.
  void read(const torch::Tensor& block) {
    advance(
        block, [](const torch::Tensor& bytes, const torch::Tensor& place) { place.copy_(bytes); }, [](const Item&) {});
  }
  // Writes `block` to the next bytes. A parameter that is not contiguous changes only when all its bytes are there.
  void write(const torch::Tensor& block) {
    advance(
        block, [](const torch::Tensor& bytes, const torch::Tensor& place) { bytes.copy_(place); },
        [](const Item& item) {
          if (!item.plain.is_alias_of(item.parameter)) item.parameter.copy_(item.plain);
        });
  }

 private:
  struct Item {
    torch::Tensor parameter;
    torch::Tensor plain;  // the parameter itself, or a copy of plain memory; from its first byte to its last
    torch::Tensor bytes;  // of `plain`
  };

  template <typename Copy, typename Complete>
  void advance(const torch::Tensor& block, const Copy& copy, const Complete& complete) {
    std::int64_t done = 0;
    while (done < block.numel()) {
      Item& item = items_[next_];
      if (offset_ == 0) {
        item.plain = item.parameter.contiguous().resolve_conj().resolve_neg();
        item.bytes = item.plain.view({-1}).view(torch::kByte);
      }
      const std::int64_t count = std::min(item.bytes.numel() - offset_, block.numel() - done);
      copy(item.bytes.narrow(0, offset_, count), block.narrow(0, done, count));
      done += count;
      offset_ += count;
      if (offset_ == item.bytes.numel()) {
        complete(item);
        item = {};
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
  std::vector<ByteStream> streams(parameters.begin(), parameters.end());
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
