// TensorBoard's messages, and the records of its event files. Numbers of fields are those of tensorboard/compat/proto
// (event, summary, tensor).
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "report/tensorboard/histogram.h"

namespace lockstep::report {

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
    add_fixed(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  Message& add_float(int field, float value) {
    add_varint(key(field, kFixed32));
    add_fixed(std::bit_cast<std::uint32_t>(value), 4);
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
    for (const double value : values) add_fixed(std::bit_cast<std::uint64_t>(value), 8);
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
  void add_fixed(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }

  std::string bytes_;
};

// Each of these is one value of a Summary. `tag` must be UTF-8, as all text.
std::string scalar_value(std::string_view tag, double value);
std::string image_value(std::string_view tag, int width, int height, std::string_view png);
std::string histogram_value(std::string_view tag, const Histogram& histogram);
std::string text_value(std::string_view tag, std::string_view text);

// The first record of a file.
std::string version_record(double wall_time);
std::string summary_record(double wall_time, std::int64_t step, std::string_view value);
// A session of a run begins with this step.
std::string start_record(double wall_time, std::int64_t step);

}  // namespace lockstep::report
