#include "report/tensorboard/events.h"

#include <array>
#include <bit>
#include <cstdint>

namespace lockstep::report {
namespace {

// What each byte adds to the checksum.
constexpr auto kTable = [] {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // with the lowest bit first
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint8_t>(byte)) & 0xff];
  return ~crc;
}

namespace {

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// Writes protocol buffers' wire format: the kinds of fields that TensorBoard's messages have.
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
  return Message().add_bytes(kTag, tag).add_float(kSimpleValue, static_cast<float>(value)).bytes();
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
