#include "report/tensorboard/events.h"

#include <variant>

#include "base/valid_utf8.h"
#include "report/tensorboard/crc32c.h"

namespace lockstep::report {
namespace {

// Fields of Summary.Value.
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kImage = 4;
constexpr int kHistogram = 5;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;

Message tagged(std::string_view tag) {
  return Message().add_bytes(kTag, tag);
}

// SummaryMetadata, which names the page that shows the value.
Message metadata(std::string_view plugin, std::string_view content) {
  return Message().add_message(1, Message().add_bytes(1, plugin).add_bytes(2, content));
}

Message hparams_value(std::string_view tag, int field, const Message& content) {
  return tagged(tag).add_message(kMetadata, metadata("hparams", Message().add_message(field, content).bytes()));
}

bool is_text(const Value& value) {
  return std::holds_alternative<std::string>(value);
}

// google.protobuf.Value: number 2, string 3, bool 4.
Message protobuf_value(const Value& value) {
  Message message;
  if (const auto* text = std::get_if<std::string>(&value)) return message.add_bytes(3, valid_utf8(*text));
  if (const auto* flag = std::get_if<bool>(&value)) return message.add_int(4, *flag ? 1 : 0);
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return message.add_double(2, static_cast<double>(*whole));
  return message.add_double(2, std::get<double>(value));
}

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// TFRecord rotates checksums, so that a checksum of data with checksums is no problem.
std::string masked_checksum(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return little_endian(((crc >> 15) | (crc << 17)) + 0xa282ead8U, 4);
}

}  // namespace

Message scalar_value(std::string_view tag, double value) {
  return tagged(tag).add_float(kSimpleValue, static_cast<float>(value));
}

Message image_value(std::string_view tag, int width, int height, std::string_view png) {
  constexpr int kRgb = 3;
  return tagged(tag).add_message(kImage,
                                 Message().add_int(1, height).add_int(2, width).add_int(3, kRgb).add_bytes(4, png));
}

Message histogram_value(std::string_view tag, const Histogram& histogram) {
  Message message;
  message.add_double(1, histogram.min).add_double(2, histogram.max);
  message.add_double(3, static_cast<double>(histogram.count));
  message.add_double(4, histogram.sum).add_double(5, histogram.sum_of_squares);
  message.add_doubles(6, histogram.limits).add_doubles(7, histogram.counts);
  return tagged(tag).add_message(kHistogram, message);
}

Message text_value(std::string_view tag, std::string_view text) {
  constexpr int kStringType = 7;  // DT_STRING
  const Message shape = Message().add_message(2, Message().add_int(1, 1));
  const Message tensor = Message().add_int(1, kStringType).add_message(2, shape).add_bytes(8, text);
  return tagged(tag).add_message(kMetadata, metadata("text", "")).add_message(kTensor, tensor);
}

Message hparams_experiment(const Values& hparams, const Scalars& metrics) {
  Message experiment;
  for (const auto& [name, value] : hparams) {
    const int type = is_text(value) ? 1 : std::holds_alternative<bool>(value) ? 2 : 3;  // DataType
    experiment.add_message(4, Message().add_bytes(1, valid_utf8(name)).add_int(4, type));
  }
  for (const auto& [name, value] : metrics) {
    experiment.add_message(5, Message().add_message(1, Message().add_bytes(2, valid_utf8(name))));
  }
  return hparams_value("_hparams_/experiment", 2, experiment);
}

Message hparams_session_start(const Values& hparams) {
  Message start;
  for (const auto& [name, value] : hparams) {
    start.add_message(1, Message().add_bytes(1, valid_utf8(name)).add_message(2, protobuf_value(value)));
  }
  return hparams_value("_hparams_/session_start_info", 3, start);
}

Message hparams_session_end() {
  constexpr int kSuccess = 1;
  return hparams_value("_hparams_/session_end_info", 4, Message().add_int(1, kSuccess));
}

Message version_event(double wall_time) {
  return Message().add_double(1, wall_time).add_bytes(3, "brain.Event:2");
}

Message summary_event(double wall_time, std::int64_t step, const Message& value) {
  return Message().add_double(1, wall_time).add_int(2, step).add_message(5, Message().add_message(1, value));
}

Message start_event(double wall_time, std::int64_t step) {
  constexpr int kStart = 1;  // SessionLog.START
  return Message().add_double(1, wall_time).add_int(2, step).add_message(7, Message().add_int(1, kStart));
}

std::string record(const Message& event) {
  const std::string length = little_endian(event.bytes().size(), 8);
  return length + masked_checksum(length) + event.bytes() + masked_checksum(event.bytes());
}

}  // namespace lockstep::report
