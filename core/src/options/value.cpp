#include "options/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/number_text.h"
#include "base/printable.h"
#include "base/word_distance.h"

namespace lockstep::options {
namespace {

using std::chrono::milliseconds;

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};
template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// A finite number, which may begin with '+'.
template <typename T>
std::optional<T> number(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const std::optional<T> value = number_from_text<T>(text);
  if constexpr (std::is_floating_point_v<T>) {
    if (value && !std::isfinite(*value)) return std::nullopt;
  }
  return value;
}

std::optional<bool> boolean(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return std::nullopt;
}

struct Unit {
  std::string_view name;
  double milliseconds;
};
constexpr Unit kUnits[] = {{"ms", 1}, {"s", 1e3}, {"min", 60e3}, {"m", 60e3}, {"h", 3600e3}, {"d", 86400e3}};

std::optional<milliseconds> duration(std::string_view text) {
  constexpr double kMost = 1e15;  // fits with room for sums
  const std::size_t letters = text.find_first_of("msihd");
  std::string_view digits = text.substr(0, letters);
  while (digits.ends_with(' ')) digits.remove_suffix(1);
  const std::optional<double> count = number<double>(digits);
  double scale = 1e3;
  if (letters != std::string_view::npos) {
    const auto* const unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                          [&](const Unit& u) { return u.name == text.substr(letters); });
    if (unit == std::end(kUnits)) return std::nullopt;
    scale = unit->milliseconds;
  }
  if (!count || std::abs(*count * scale) > kMost) return std::nullopt;
  return milliseconds(std::llround(*count * scale));
}

bool in_range(const Key& key, double value) {
  return value >= key.least() && value <= key.most();
}

// One value of type T, within the key's limits.
template <typename T>
std::optional<T> scalar(const Key& key, const Node& node) {
  if (node.kind != Node::Kind::kScalar) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    const auto& words = key.words();
    const bool allowed = words.empty() || std::find(words.begin(), words.end(), node.text) != words.end();
    return allowed ? std::optional(node.text) : std::nullopt;
  } else if (node.quoted) {
    return std::nullopt;
  } else if constexpr (std::is_same_v<T, bool>) {
    return boolean(node.text);
  } else if constexpr (std::is_same_v<T, milliseconds>) {
    const auto time = duration(node.text);
    return time && in_range(key, static_cast<double>(time->count()) / 1e3) ? time : std::nullopt;
  } else {
    const auto value = number<T>(node.text);
    return value && in_range(key, static_cast<double>(*value)) ? value : std::nullopt;
  }
}

using Store = std::optional<std::function<void()>>;

template <typename T>
Store store(T* field, std::optional<T> value) {
  if (!value) return std::nullopt;
  return [field, value = std::move(*value)] { *field = value; };
}

struct Converter {
  const Key& key;
  const Node& node;

  template <typename T>
  Store operator()(T* field) const {
    if constexpr (IsVector<T>::value) {
      return list<typename T::value_type>(field);
    } else if constexpr (IsOptional<T>::value) {
      if (node.kind == Node::Kind::kNull) return [field] { field->reset(); };
      auto value = scalar<typename T::value_type>(key, node);
      if (!value) return std::nullopt;
      return [field, value = std::move(*value)] { *field = value; };
    } else {
      return store<T>(field, scalar<T>(key, node));
    }
  }

  Store operator()(const TextField&) const { return std::nullopt; }  // to_value() lets the field read its text

 private:
  template <typename T>
  Store list(std::vector<T>* field) const {
    if (node.kind != Node::Kind::kList) return std::nullopt;
    std::vector<T> values;
    for (const Node& item : node.items) {
      std::optional<T> value = scalar<T>(key, item);
      if (!value) return std::nullopt;
      values.push_back(std::move(*value));
    }
    return store<std::vector<T>>(field, std::move(values));
  }
};

// "of at least 1", "from 0 to 1".
std::string limits(const Key& key) {
  const bool least = std::isfinite(key.least());
  const bool most = std::isfinite(key.most());
  if (least && most) return fmt::format(" from {} to {}", key.least(), key.most());
  if (least) return fmt::format(" of at least {}", key.least());
  return most ? fmt::format(" of at most {}", key.most()) : "";
}

std::string one_of(const std::vector<std::string>& words) {
  return fmt::format("one of {}", fmt::join(words, ", "));
}

struct Describer {
  const Key& key;
  const char* or_none;

  std::string operator()(bool*) const { return "true or false"; }
  std::string operator()(double*) const { return "a number" + limits(key); }
  std::string operator()(std::string*) const { return key.words().empty() ? "a text" : one_of(key.words()); }
  std::string operator()(milliseconds*) const { return fmt::format("a time such as 30s or 5min{}", time_limits()); }
  std::string operator()(std::vector<std::string>*) const {
    return key.words().empty() ? "a list of texts such as [a, b]" : fmt::format("a list with {}", one_of(key.words()));
  }
  template <typename T>
  std::string operator()(std::vector<T>*) const {
    const double first = std::max(0.0, key.least());
    return std::is_integral_v<T>
               ? fmt::format("a list of whole numbers{} such as [{}, {}]", limits(key), first, first + 2)
               : fmt::format("a list of numbers{} such as [0.5, 1]", limits(key));
  }
  template <typename T>
  std::string operator()(std::optional<T>*) const {
    return (*this)(static_cast<T*>(nullptr)) + or_none;
  }
  template <typename T>
  std::string operator()(T*) const {  // int, std::int64_t
    const std::string fits = std::isfinite(key.most()) ? "" : fmt::format(" that fits in {} bits", 8 * sizeof(T));
    return fmt::format("a whole number{}{}", limits(key), fits);
  }
  std::string operator()(const TextField& field) const { return field.words.empty() ? "a text" : one_of(field.words); }

 private:
  std::string time_limits() const {
    if (std::isfinite(key.most())) return fmt::format(", from {} to {} seconds", key.least(), key.most());
    return key.least() > 0 ? fmt::format(", at least {} seconds", key.least()) : "";
  }
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

// Leaves out the quotes only where every reader of YAML takes the value for a text.
std::string text_of(const std::string& text) {
  const auto harmless = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '/' || c == '.';
  };
  const bool plain = !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0 &&
                     std::all_of(text.begin(), text.end(), harmless);
  static constexpr std::string_view kNotTexts[] = {"true", "false", "null", "none", "yes", "no", "on", "off", "y", "n"};
  const bool special = std::any_of(std::begin(kNotTexts), std::end(kNotTexts),
                                   [&](std::string_view word) { return word_distance(text, word) == 0; });
  return plain && !special ? text : quoted(text);
}

struct Writer {
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const std::string* value) const { return text_of(*value); }
  std::string operator()(const milliseconds* value) const {
    const bool seconds = value->count() % 1000 == 0;
    return seconds ? fmt::format("{}s", value->count() / 1000) : fmt::format("{}ms", value->count());
  }
  std::string operator()(const TextField& field) const { return text_of(field.text()); }
  template <typename T>
  std::string operator()(const std::vector<T>* values) const {
    std::vector<std::string> texts;
    for (const T& value : *values) texts.push_back((*this)(&value));
    return fmt::format("[{}]", fmt::join(texts, ", "));
  }
  template <typename T>
  std::string operator()(const std::optional<T>* value) const {
    return *value ? (*this)(&**value) : "null";
  }
  template <typename T>
  std::string operator()(const T* value) const {
    return fmt::format("{}", *value);
  }
};

template <template <typename> class Is>
bool field_is(const Field& field) {
  return std::visit(
      [](const auto& bound) {
        return Is<std::remove_cv_t<std::remove_pointer_t<std::remove_cvref_t<decltype(bound)>>>>::value;
      },
      field);
}

// The next comma that is not inside brackets: "RandomCrop(32, padding=4)" is one item.
std::size_t end_of_item(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (c == ',' && depth <= 0) return i;
  }
  return text.size();
}

}  // namespace

std::string expected(const Key& key, bool in_file) {
  return std::visit(Describer{key, in_file ? " or null" : " or none"}, key.field());
}

Result<std::function<void()>> to_value(const Key& key, const Node& node, bool in_file) {
  const auto* text = std::get_if<TextField>(&key.field());
  if (text != nullptr && node.kind == Node::Kind::kScalar) {
    auto store = text->read(node.text);
    if (store.ok() || text->words.empty()) return store;
  }
  if (auto store = std::visit(Converter{key, node}, key.field())) return std::move(*store);
  return Status(ErrorCode::kInvalidArgument, fmt::format("expected {}, found {}", expected(key, in_file), found(node)));
}

Node node_from_text(const Key& key, std::string_view text) {
  Node node;
  if (field_is<IsOptional>(key.field()) && text == "none") return node;
  if (!is_list(key.field())) {
    node.kind = Node::Kind::kScalar;
    node.text = text;
    if (key.is_flag() && (text == "1" || text == "0")) node.text = text == "1" ? "true" : "false";
    return node;
  }
  node.kind = Node::Kind::kList;
  while (!text.empty()) {
    const std::size_t comma = end_of_item(text);
    Node& item = node.items.emplace_back();
    item.kind = Node::Kind::kScalar;
    item.text = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return node;
}

std::string found(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull: return "nothing";
    case Node::Kind::kScalar: return node.quoted ? fmt::format("the text {}", shown(node.text)) : shown(node.text);
    case Node::Kind::kMap: return "a section";
    case Node::Kind::kList: break;
  }
  for (const Node& item : node.items) {
    if (item.kind != Node::Kind::kScalar) return fmt::format("a list that holds {}", found(item));
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min<std::size_t>(node.items.size(), 8); ++i)
    texts.push_back(shown(node.items[i].text));
  return fmt::format("a list of {}{}", fmt::join(texts, ", "), node.items.size() > 8 ? ", ..." : "");
}

std::string value_text(const Field& field) {
  return std::visit(Writer(), field);
}

bool is_list(const Field& field) {
  return field_is<IsVector>(field);
}

std::string shown(std::string_view word) {
  constexpr std::size_t kMostShown = 64;  // letters
  const bool cut = word.size() > kMostShown;
  return fmt::format("'{}{}'", printable(word.substr(0, kMostShown)), cut ? "..." : "");
}

}  // namespace lockstep::options
