// JSON for files and programs that may be hostile: objects with many members, numbers that JSON lacks, deep levels.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::report {

// The members of a JSON object, in their order. nlohmann::ordered_map compares each new name with all before it, so an
// object of many members takes the square of their number in time. AppendMap compares nothing where it adds, so
// operator[] of a Json that is not const always adds a member: read by at() or find(). A name that comes twice is in
// the object twice, and find() finds the last, as in Python.
template <typename Name, typename Value, typename Less, typename Allocator>
struct AppendMap : nlohmann::ordered_map<Name, Value, Less, Allocator> {
  using Map = nlohmann::ordered_map<Name, Value, Less, Allocator>;
  using Map::Map;

  std::pair<typename Map::iterator, bool> emplace(Name name, Value&& value) {
    this->emplace_back(std::move(name), std::move(value));
    return {std::prev(this->end()), true};
  }
  Value& operator[](Name name) { return emplace(std::move(name), Value()).first->second; }

  auto find(const auto& name) { return last(*this, name); }
  auto find(const auto& name) const { return last(*this, name); }

 private:
  static auto last(auto& members, const auto& name) {
    const auto found =
        std::find_if(members.rbegin(), members.rend(), [&](const auto& member) { return member.first == name; });
    return found == members.rend() ? members.end() : std::prev(found.base());
  }
};

using Json = nlohmann::basic_json<AppendMap>;

// Numbers that JSON lacks, as text: "NaN", "Infinity", "-Infinity", the words of JavaScript and Python's float().
inline Json to_json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

// Throws nlohmann::json::type_error for anything else than a number or these words.
inline double from_json_number(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto& text = json.get_ref<const std::string&>();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return Json().get<double>();  // throws
}

// Logs and tables have fewer levels. What other programs put into a log has a few more.
inline constexpr int kMostLevels = 16;

// The library copies and writes values by recursion, so text with many levels would overflow the stack. Text with more
// than kMostLevels is as text that is no JSON: discarded. Objects may have any number of members: the time grows in
// proportion to the text.
Json parse_json(std::string_view text);

}  // namespace lockstep::report
