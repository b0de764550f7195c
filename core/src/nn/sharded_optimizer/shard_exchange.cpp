#include "shard_exchange.h"

#include <algorithm>

#include "parameter_stream.h"

namespace lockstep::nn_detail {
namespace {

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
