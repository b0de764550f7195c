#include "integer_mean.h"

#include <cstddef>
#include <cstring>

namespace lockstep::comm {
namespace {

// Calls visit(T{}), T being the type of the elements, for integers of up to 32 bits.
template <typename Visit>
void visit_integer(DataType type, const Visit& visit) {
  switch (type) {
    case DataType::kUInt8: return visit(std::uint8_t{});
    case DataType::kInt8: return visit(std::int8_t{});
    case DataType::kUInt16: return visit(std::uint16_t{});
    case DataType::kInt16: return visit(std::int16_t{});
    case DataType::kUInt32: return visit(std::uint32_t{});
    case DataType::kInt32: return visit(std::int32_t{});
    default: return;
  }
}

void widen(DataType type, const ConstPiece& from, std::int64_t* to) {
  visit_integer(type, [&](auto value) {
    const auto* bytes = static_cast<const std::byte*>(from.data);
    for (std::size_t at = 0; at < from.bytes; at += sizeof value) {
      std::memcpy(&value, bytes + at, sizeof value);
      *to++ = value;  // NOLINT(bugprone-signed-char-misuse): a number, not a character
    }
  });
}

void narrow(DataType type, const std::int64_t* from, const Piece& to) {
  visit_integer(type, [&](auto value) {
    auto* bytes = static_cast<std::byte*>(to.data);
    for (std::size_t at = 0; at < to.bytes; at += sizeof value) {
      value = static_cast<decltype(value)>(*from++);
      std::memcpy(bytes + at, &value, sizeof value);
    }
  });
}

}  // namespace

bool IntegerMean::is_needed(const Request& request) {
  const bool reduces =
      request.kind == Kind::kAllReduce || request.kind == Kind::kReduce || request.kind == Kind::kReduceScatter;
  bool narrow_integers = false;
  visit_integer(request.type, [&](auto) { narrow_integers = true; });
  return reduces && request.op == ReduceOp::kAvg && narrow_integers;
}

IntegerMean::IntegerMean(const Request& request, std::span<SizeEntry> sizes) : widened_(request) {
  const std::size_t element = size_of(request.type);
  const std::size_t growth = sizeof(std::int64_t) / element;
  widened_.type = DataType::kInt64;
  std::size_t elements = request.input.bytes / element;
  for (const ConstPiece& piece : request.inputs) elements += piece.bytes / element;
  inputs_.resize(elements);
  output_.resize(request.output.bytes / element);
  std::int64_t* place = inputs_.data();
  const auto copy = [&](const ConstPiece& piece) {
    widen(request.type, piece, place);
    const ConstPiece copied{place, piece.bytes * growth};
    place += piece.bytes / element;
    return copied;
  };
  widened_.input = copy(request.input);
  for (ConstPiece& piece : widened_.inputs) piece = copy(piece);
  widened_.output = {output_.data(), request.output.bytes * growth};
  for (SizeEntry& size : sizes) size = {size.sent * growth, size.wanted * growth};
}

void IntegerMean::finish(const Request& request) const {
  narrow(request.type, output_.data(), request.output);
}

}  // namespace lockstep::comm
