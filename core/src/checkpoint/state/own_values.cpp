#include "own_values.h"

#include <fmt/format.h>

#include "base/number_text.h"
#include "lockstep/checkpoint/errors.h"
#include "text_of.h"
#include "value_text.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kIntType = "int";
constexpr const char* kFloatType = "float";
constexpr const char* kTextType = "text";
constexpr const char* kValueType = "value";

std::string type_key(std::string_view name) {
  return fmt::format("type.{}", name);
}

void set_typed(TensorFile& file, std::string_view name, std::string text, const char* type) {
  file.metadata[std::string(kValuePrefix).append(name)] = std::move(text);
  file.metadata[type_key(name)] = type;
}

template <typename T>
T typed_number(const std::string& text) {
  if (const auto value = number_from_text<T>(text)) return *value;
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("it is no number: {:.100}", text));
}

}  // namespace

void set_own_value(TensorFile& file, std::string_view name, std::int64_t value) {
  set_typed(file, name, text_of(value), kIntType);
}
void set_own_value(TensorFile& file, std::string_view name, double value) {
  set_typed(file, name, text_of(value), kFloatType);
}
void set_own_value(TensorFile& file, std::string_view name, std::string_view value) {
  set_typed(file, name, std::string(value), kTextType);
}
void set_own_value(TensorFile& file, std::string_view name, const c10::IValue& value) {
  std::string text = text_of_value(value);  // refuses what no value can be
  if (value.isInt()) return set_own_value(file, name, value.toInt());
  if (value.isDouble()) return set_own_value(file, name, value.toDouble());
  if (value.isString()) return set_own_value(file, name, std::string_view(value.toStringRef()));
  set_typed(file, name, std::move(text), kValueType);
}

bool has_type(const TensorFile& file, std::string_view name) {
  return file.metadata.contains(type_key(name));
}

std::string own_text(const TensorFile& file, std::string_view name, const std::string& text) {
  const auto type = file.metadata.find(type_key(name));
  if (type == file.metadata.end() || type->second != kValueType) return text;
  const c10::IValue value = value_of_text(text);
  if (value.isString()) return value.toStringRef();
  if (value.isInt()) return text_of(value.toInt());
  if (value.isDouble()) return text_of(value.toDouble());
  throw CheckpointError(ErrorCode::kCorrupt, "it is neither text nor a number: get_value() returns it");
}

c10::IValue own_value(const TensorFile& file, std::string_view name, const std::string& text, DictGrowth& growth) {
  const auto type = file.metadata.find(type_key(name));
  if (type == file.metadata.end() || type->second == kTextType) return text;
  if (type->second == kIntType) return typed_number<std::int64_t>(text);
  if (type->second == kFloatType) return typed_number<double>(text);
  if (type->second == kValueType) return value_of_text(text, growth);
  throw CheckpointError(
      ErrorCode::kUnsupported,
      fmt::format("it has the type {:.40}, which this version of Lockstep does not know: use a newer one",
                  type->second));
}

}  // namespace lockstep::checkpoint
