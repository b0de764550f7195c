#include "report/json.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::report {
namespace {

using Json = nlohmann::ordered_json;

// Exact for JSON. Any other text is refused by the parser, whatever is counted here.
bool has_too_many_levels(std::string_view text) {
  int levels = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;  // what is escaped does not end the quote
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      if (++levels > kMostLevels) return true;
    } else if (!quoted && (c == ']' || c == '}')) {
      --levels;
    }
  }
  return false;
}

// Makes the value that Json::parse() makes, but objects in linear time (JsonMembers).
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(value_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // text has none
  bool start_object(std::size_t /*members*/) override { return open(/*is_object=*/true); }
  bool key(string_t& name) override {
    open_.back().name = std::move(name);
    return true;
  }
  bool end_object() override { return close(open_.back().members.take()); }
  bool start_array(std::size_t /*items*/) override { return open(/*is_object=*/false); }
  bool end_array() override { return close(std::move(open_.back().items)); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const Json::exception& /*error*/) override {
    return false;
  }

 private:
  // A list or an object whose end has not come yet.
  struct Level {
    bool is_object = false;
    Json::array_t items = {};
    JsonMembers members = {};
    std::string name = {};  // of the next member
  };

  bool open(bool is_object) {
    open_.emplace_back();
    open_.back().is_object = is_object;
    return true;
  }
  bool close(Json value) {
    open_.pop_back();
    return put(std::move(value));
  }
  bool put(Json value) {
    if (open_.empty()) {
      value_ = std::move(value);
    } else if (Level& level = open_.back(); level.is_object) {
      level.members.set(std::move(level.name), std::move(value));
    } else {
      level.items.push_back(std::move(value));
    }
    return true;
  }

  Json value_;
  std::vector<Level> open_;
};

}  // namespace

Json parse_json(std::string_view text) {
  Builder builder;
  if (has_too_many_levels(text) || !Json::sax_parse(text, &builder)) return Json(Json::value_t::discarded);
  return builder.take();
}

}  // namespace lockstep::report
