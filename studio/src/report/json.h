// JSON for files and programs that may be hostile: objects with many members, numbers that JSON lacks, deep levels.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::report {

// The members of a JSON object while it is made. They stay in their order, as in nlohmann::ordered_json. That compares
// each new name with all before it, so an object of many members takes the square of their number in time; this takes
// time in proportion to it.
class JsonMembers {
 public:
  // Of a name that comes twice the last value counts, at the place of the first.
  void set(std::string name, nlohmann::ordered_json value) {
    const auto [place, is_new] = places_.try_emplace(name, members_.size());
    if (is_new) {
      members_.emplace_back(std::move(name), std::move(value));
    } else {
      members_[place->second].second = std::move(value);
    }
  }

  // The object. Afterwards there are no members.
  nlohmann::ordered_json take() {
    nlohmann::ordered_json::object_t object;
    object.reserve(members_.size());
    for (auto& [name, value] : members_) object.emplace_back(std::move(name), std::move(value));
    members_.clear();
    places_.clear();
    return nlohmann::ordered_json(std::move(object));
  }

 private:
  std::vector<std::pair<std::string, nlohmann::ordered_json>> members_;
  std::unordered_map<std::string, std::size_t> places_;
};

// Numbers that JSON lacks, as text: "NaN", "Infinity", "-Infinity", the words of JavaScript and Python's float().
inline nlohmann::ordered_json to_json_number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

// Throws nlohmann::json::type_error for anything else than a number or these words.
inline double from_json_number(const nlohmann::ordered_json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto& text = json.get_ref<const std::string&>();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return nlohmann::ordered_json().get<double>();  // throws
}

// Logs and tables have fewer levels. What other programs put into a log has a few more.
inline constexpr int kMostLevels = 16;

// The library copies and writes values by recursion, so text with many levels would overflow the stack. Text with more
// than kMostLevels is as text that is no JSON: discarded. Objects may have any number of members: the time grows in
// proportion to the text. Of members with the same name the last one counts.
nlohmann::ordered_json parse_json(std::string_view text);

}  // namespace lockstep::report
