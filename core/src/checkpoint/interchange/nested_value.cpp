#include "nested_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "checkpoint/file/damaged.h"

namespace lockstep::checkpoint {
namespace {

// Places of lists that no value has are None, as in Python.
constexpr std::int64_t kMostListPlaces = std::int64_t{1} << 24;

c10::IValue key_of(const NestedValue::Step& step) {
  if (const auto* index = std::get_if<std::int64_t>(&step)) return *index;
  return std::string(std::get<std::string_view>(step));
}

}  // namespace

NestedValue::NestedValue() {
  nodes_.emplace_back();
  nodes_[0].is_leaf = false;
}

// The place of a part of a container; made when it is new.
std::size_t NestedValue::part_of(std::size_t node, const Step& step) {
  if (nodes_[node].is_list && !std::holds_alternative<std::int64_t>(step)) damaged("a list has a key that is text");
  const auto [found, is_new] = index_.try_emplace({node, step}, nodes_.size());
  if (is_new) {
    nodes_[node].parts.emplace_back(step, nodes_.size());
    nodes_.emplace_back();
  }
  return found->second;
}

void NestedValue::add(const std::vector<Step>& path, c10::IValue value) {
  std::size_t node = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const std::size_t known = nodes_.size();
    node = part_of(node, path[i]);
    const bool is_new = nodes_.size() > known;
    const bool is_last = i + 1 == path.size();
    if (!is_new && (is_last || nodes_[node].is_leaf)) {
      damaged("two of its values have the same place, or one is inside of another");
    }
    if (!is_new || is_last) continue;
    nodes_[node].is_leaf = false;
    nodes_[node].is_list = std::holds_alternative<std::int64_t>(path[i + 1]);
  }
  nodes_[node].value = std::move(value);
}

c10::IValue NestedValue::build() {
  return build(nodes_[0]);
}

// The depth is at most that of the longest path.
c10::IValue NestedValue::build(const Node& node) {
  if (node.is_leaf) return node.value;
  if (node.is_list) return build_list(node);
  std::vector<std::pair<c10::IValue, c10::IValue>> entries;
  entries.reserve(node.parts.size());
  for (const auto& [step, part] : node.parts) entries.emplace_back(key_of(step), build(nodes_[part]));
  return growth_.make(entries);
}

c10::IValue NestedValue::build_list(const Node& node) {
  std::int64_t places = 0;
  for (const auto& [step, part] : node.parts) {
    const std::int64_t index = std::get<std::int64_t>(step);
    if (index < 0 || index >= kMostListPlaces) damaged(fmt::format("a list has the index {}", index));
    places = std::max(places, index + 1);
  }
  list_places_ += places;
  if (list_places_ > kMostListPlaces) damaged(fmt::format("its lists have over {} places", kMostListPlaces));
  std::vector<c10::IValue> values(static_cast<std::size_t>(places));
  for (const auto& [step, part] : node.parts) {
    values[static_cast<std::size_t>(std::get<std::int64_t>(step))] = build(nodes_[part]);
  }
  c10::impl::GenericList list(c10::AnyType::get());
  for (c10::IValue& value : values) list.push_back(std::move(value));
  return list;
}

}  // namespace lockstep::checkpoint
