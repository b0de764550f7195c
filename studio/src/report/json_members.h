// The members of a JSON object while it is made.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::report {

// They stay in their order, as in nlohmann::ordered_json. That compares each new name with all before it, so an object
// of many members takes the square of their number in time; this takes time in proportion to it.
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

}  // namespace lockstep::report
