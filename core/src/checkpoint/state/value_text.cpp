#include "value_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/number_text.h"
#include "file_values.h"
#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr int kDeepestText = 100;
constexpr std::size_t kMostText = std::size_t{256} << 20;

[[noreturn]] void refuse_value(const std::string& what) {
  throw CheckpointError(ErrorCode::kUnsupported, what);
}

[[noreturn]] void wrong_text(const char* what) {
  throw CheckpointError(ErrorCode::kCorrupt, fmt::format("a value is no text of Lockstep: {}", what));
}

json json_of(const c10::IValue& value, int depth, std::size_t& left);

template <typename Items>
json array_of(const Items& items, int depth, std::size_t& left) {
  json array = json::array();
  for (const c10::IValue& item : items) array.push_back(json_of(item, depth + 1, left));
  return array;
}

json dict_of(const c10::impl::GenericDict& dict, int depth, std::size_t& left) {
  json pairs = json::array();
  for (const auto& entry : dict) {
    pairs.push_back(json::array({json_of(entry.key(), depth + 1, left), json_of(entry.value(), depth + 1, left)}));
  }
  return {{"dict", std::move(pairs)}};
}

// `left`: how many bytes the text may still have, about. Values that share a part have it once in memory, and as text
// once for each place.
json json_of(const c10::IValue& value, int depth, std::size_t& left) {
  if (depth > kDeepestText)
    refuse_value(fmt::format("the value is nested over {} deep, or contains itself", kDeepestText));
  const std::size_t bytes = 16 + (value.isString() ? value.toStringRef().size() : 0);
  if (bytes > left) refuse_value(fmt::format("the value takes over {} MiB as text", kMostText >> 20));
  left -= bytes;
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isUnsigned()) return value.toUInt();
  if (value.isDouble()) {
    if (std::isfinite(value.toDouble())) return value.toDouble();
    return {{"float", text_of(value.toDouble())}};
  }
  if (value.isString()) return value.toStringRef();
  if (value.isList()) return array_of(value.toListRef(), depth, left);
  if (value.isTuple()) return {{"tuple", array_of(value.toTupleRef().elements(), depth, left)}};
  if (value.isGenericDict()) return dict_of(value.toGenericDict(), depth, left);
  if (const std::string* foreign = foreign_text(value)) refuse_value("it is " + *foreign);
  refuse_value(fmt::format("a value of the kind {} cannot be saved: expected numbers, text, lists, tuples and dicts",
                           value.tagKind()));
}

c10::IValue value_of(const json& value, DictGrowth& growth, int depth);

std::vector<c10::IValue> values_of(const json& array, DictGrowth& growth, int depth) {
  if (!array.is_array()) wrong_text("a list is expected");
  std::vector<c10::IValue> values;
  for (const json& item : array) values.push_back(value_of(item, growth, depth + 1));
  return values;
}

c10::IValue dict_from(const json& pairs, DictGrowth& growth, int depth) {
  std::vector<std::pair<c10::IValue, c10::IValue>> entries;
  for (const c10::IValue& pair : values_of(pairs, growth, depth)) {
    if (!pair.isList() || pair.toListRef().size() != 2) wrong_text("a dict is no list of pairs");
    const c10::IValue key = pair.toListRef()[0];
    if (!key.isString() && !key.isInt() && !key.isDouble() && !key.isBool()) {
      wrong_text("a key is neither text nor a number");
    }
    entries.emplace_back(key, pair.toListRef()[1]);
  }
  return growth.make(entries);
}

c10::IValue from_object(const json& object, DictGrowth& growth, int depth) {
  if (object.size() != 1) wrong_text("an object of one entry is expected");
  const std::string& kind = object.begin().key();
  const json& content = object.begin().value();
  if (kind == "tuple") return c10::ivalue::Tuple::create(values_of(content, growth, depth));
  if (kind == "dict") return dict_from(content, growth, depth);
  const auto number = kind == "float" && content.is_string()
                          ? number_from_text<double>(content.get_ref<const std::string&>())
                          : std::nullopt;
  if (!number) wrong_text("an unknown kind of value");
  return *number;
}

c10::IValue value_of(const json& value, DictGrowth& growth, int depth) {
  if (depth > kDeepestText) wrong_text("its values are nested too deeply");
  switch (value.type()) {
    case json::value_t::null: return {};
    case json::value_t::boolean: return value.get<bool>();
    case json::value_t::number_integer: return value.get<std::int64_t>();
    case json::value_t::number_unsigned:
      if (value.get<std::uint64_t>() > INT64_MAX) return c10::IValue(at::Scalar(value.get<std::uint64_t>()));
      return value.get<std::int64_t>();
    case json::value_t::number_float: return value.get<double>();
    case json::value_t::string: return value.get<std::string>();
    case json::value_t::object: return from_object(value, growth, depth);
    case json::value_t::array: {
      c10::impl::GenericList list(c10::AnyType::get());
      for (c10::IValue& item : values_of(value, growth, depth)) list.push_back(std::move(item));
      return list;
    }
    default: wrong_text("an unknown kind of value");
  }
}

}  // namespace

std::string text_of_value(const c10::IValue& value) {
  try {
    std::size_t left = kMostText;
    return json_of(value, 0, left).dump();
  } catch (const json::exception& error) {
    refuse_value(fmt::format("text must be UTF-8: {}", error.what()));
  }
}

c10::IValue value_of_text(std::string_view text, DictGrowth& growth) {
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) wrong_text("it is no JSON");
  return value_of(parsed, growth, 0);
}

// --- A program's own values

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
