#include "report/tensorboard/events.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::report {
namespace {

// table[k][byte]: what `byte` adds to the checksum when k bytes follow it in a group of 8.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // with the lowest bit first
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint32_t mixed = i < 4 ? byte(i) ^ ((crc >> (8 * i)) & 0xff) : byte(i);
      next ^= kTables[7 - i][mixed];
    }
    crc = next;
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ byte(i)) & 0xff];
  return ~crc;
}

namespace {

std::vector<double> make_edges() {
  std::vector<double> positive;
  for (double edge = 1e-12; edge < 1e20; edge *= 1.1) positive.push_back(edge);  // NOLINT(bugprone-float-loop-counter)
  std::vector<double> edges;
  for (auto edge = positive.rbegin(); edge != positive.rend(); ++edge) edges.push_back(-*edge);
  edges.push_back(0.0);
  edges.insert(edges.end(), positive.begin(), positive.end());
  return edges;
}

// Bin i is from edges[i] to edges[i + 1], without that. Values beyond are in the first and the last bin.
std::size_t bin_of(double value, const std::vector<double>& edges) {
  const auto after = std::upper_bound(edges.begin(), edges.end(), value) - edges.begin();
  return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(after - 1, 0, std::ssize(edges) - 2));
}

}  // namespace

std::optional<Histogram> histogram(std::span<const float> values) {
  static const std::vector<double> edges = make_edges();
  Histogram result;
  std::vector<double> counts(edges.size() - 1);
  for (const float single : values) {
    if (!std::isfinite(single)) continue;
    const double value = single;
    result.min = result.count == 0 ? value : std::min(result.min, value);
    result.max = result.count == 0 ? value : std::max(result.max, value);
    result.sum += value;
    result.sum_of_squares += value * value;
    ++result.count;
    ++counts[bin_of(value, edges)];
  }
  if (result.count == 0) return std::nullopt;
  const std::size_t first = bin_of(result.min, edges);
  const std::size_t last = bin_of(result.max, edges);
  result.limits.push_back(edges[first]);
  result.counts.push_back(0.0);
  for (std::size_t i = first; i <= last; ++i) {
    result.limits.push_back(edges[i + 1]);
    result.counts.push_back(counts[i]);
  }
  return result;
}

namespace {

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// Writes protocol buffers' wire format: the six kinds of fields that TensorBoard's messages have.
//
// libprotobuf would need a copy of TensorBoard's .proto files and its compiler, and libtorch_cpu exports another
// version's symbols, so that the two would meet in one process (docs/dependencies.md).
class Message {
 public:
  Message& add_int(int field, std::int64_t value) {
    add_varint(key(field, kVarint));
    add_varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& add_double(int field, double value) {
    add_varint(key(field, kFixed64));
    bytes_ += little_endian(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  Message& add_float(int field, float value) {
    add_varint(key(field, kFixed32));
    bytes_ += little_endian(std::bit_cast<std::uint32_t>(value), 4);
    return *this;
  }
  // Also for strings, which must be UTF-8: readers refuse a whole message for one wrong byte.
  Message& add_bytes(int field, std::string_view bytes) {
    add_varint(key(field, kLengthDelimited));
    add_varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  Message& add_message(int field, const Message& message) { return add_bytes(field, message.bytes_); }
  Message& add_doubles(int field, std::span<const double> values) {
    add_varint(key(field, kLengthDelimited));
    add_varint(8 * values.size());
    for (const double value : values) bytes_ += little_endian(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

  static std::uint64_t key(int field, WireType type) {
    return static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type);
  }
  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Fields of Summary.Value.
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kImage = 4;
constexpr int kHistogram = 5;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;  // names the page that shows the value

Message tagged(std::string_view tag) {
  return Message().add_bytes(kTag, tag);
}

// TFRecord rotates checksums, so that a checksum of data with checksums is no problem.
std::string masked_checksum(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return little_endian(((crc >> 15) | (crc << 17)) + 0xa282ead8U, 4);
}

// Length, checksum of the length, event, checksum of the event (TFRecord).
std::string record(const Message& event) {
  const std::string length = little_endian(event.bytes().size(), 8);
  return length + masked_checksum(length) + event.bytes() + masked_checksum(event.bytes());
}

}  // namespace

std::string scalar_value(std::string_view tag, double value) {
  return tagged(tag).add_float(kSimpleValue, static_cast<float>(value)).bytes();
}

std::string image_value(std::string_view tag, int width, int height, std::string_view png) {
  constexpr int kRgb = 3;
  const Message image = Message().add_int(1, height).add_int(2, width).add_int(3, kRgb).add_bytes(4, png);
  return tagged(tag).add_message(kImage, image).bytes();
}

std::string histogram_value(std::string_view tag, const Histogram& histogram) {
  Message message;
  message.add_double(1, histogram.min).add_double(2, histogram.max);
  message.add_double(3, static_cast<double>(histogram.count));
  message.add_double(4, histogram.sum).add_double(5, histogram.sum_of_squares);
  message.add_doubles(6, histogram.limits).add_doubles(7, histogram.counts);
  return tagged(tag).add_message(kHistogram, message).bytes();
}

std::string text_value(std::string_view tag, std::string_view text) {
  constexpr int kStringType = 7;  // DT_STRING
  const Message text_page = Message().add_message(1, Message().add_bytes(1, "text").add_bytes(2, ""));
  const Message shape = Message().add_message(2, Message().add_int(1, 1));
  const Message tensor = Message().add_int(1, kStringType).add_message(2, shape).add_bytes(8, text);
  return tagged(tag).add_message(kMetadata, text_page).add_message(kTensor, tensor).bytes();
}

std::string version_record(double wall_time) {
  return record(Message().add_double(1, wall_time).add_bytes(3, "brain.Event:2"));
}

std::string summary_record(double wall_time, std::int64_t step, std::string_view value) {
  const Message summary = Message().add_bytes(1, value);
  return record(Message().add_double(1, wall_time).add_int(2, step).add_message(5, summary));
}

std::string start_record(double wall_time, std::int64_t step) {
  constexpr int kStart = 1;  // SessionLog.START
  return record(Message().add_double(1, wall_time).add_int(2, step).add_message(7, Message().add_int(1, kStart)));
}

}  // namespace lockstep::report
