#include "options/reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace lockstep::options {

std::string Problems::name_of(Place place) const {
  return fmt::format("{}:{}:{}", file_, place.line, place.column);
}

void Problems::add(Place place, std::string_view message) {
  in_file_.push_back({place, fmt::format("{}: {}", name_of(place), message)});
}

void Problems::add(std::string_view message) {
  elsewhere_.emplace_back(message);
}

std::string Problems::text(std::size_t most) const {
  std::vector<InFile> sorted = in_file_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const InFile& a, const InFile& b) {
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  std::vector<std::string> lines;
  lines.reserve(sorted.size());
  for (InFile& problem : sorted) lines.push_back(std::move(problem.text));
  lines.insert(lines.end(), elsewhere_.begin(), elsewhere_.end());
  std::string all;
  for (std::size_t i = 0; i < std::min(most, lines.size()); ++i) all += (i == 0 ? "" : "\n") + lines[i];
  if (lines.size() > most) all += fmt::format("\nand {} more", lines.size() - most);
  return all;
}

void Reading::take_from_file(const Key& key, const Node& node) {
  const std::string place = problems.name_of(node.place);
  take(key, node, key.path(), {Layer::kFile, place});
}

void Reading::take_variables(const Table& table, const Sources& sources) {
  for (const Key& key : table.keys()) {
    const auto text = key.variable().empty() ? std::nullopt : sources.environment.get(key.variable());
    const auto is_of_key = [&](const Option& option) { return table.find_option(option.name) == &key; };
    // A wrong variable does not matter to who gives the option.
    if (!text || std::any_of(sources.options.begin(), sources.options.end(), is_of_key)) continue;
    take(key, node_from_text(key, *text), "the variable " + key.variable(),
         {Layer::kEnvironment, key.variable(), *text});
  }
}

void Reading::take_options(const Table& table, const std::vector<Option>& options) {
  std::map<const Key*, Node> words;  // commas in a word do not separate values
  for (const auto& [name, text] : options) {
    const Key* key = table.find_option(name);
    if (key == nullptr) {
      problems.add(fmt::format("unknown option {}", shown(name)));
    } else if ((key->is_word() || key->is_rest()) && is_list(key->field())) {
      Node& list = words[key];
      list.kind = Node::Kind::kList;
      Node& word = list.items.emplace_back();
      word.kind = Node::Kind::kScalar;
      word.text = text;
    } else {
      take(*key, node_from_text(*key, text), name, {Layer::kCommandLine, name, text});
    }
  }
  for (const auto& [key, list] : words) take(*key, list, key->name(), {Layer::kCommandLine, "the command line"});
}

void Reading::take(const Key& key, const Node& node, const std::string& subject, Origin origin) {
  const bool in_file = origin.layer == Layer::kFile;
  auto store = to_value(key, node, in_file);
  if (store.ok()) {
    values_[&key] = {std::move(store).value(), std::move(origin)};
    return;
  }
  const std::string message = fmt::format("{}: {}", subject, store.status().message());
  if (in_file) return problems.add(node.place, message);
  problems.add(message);
}

const Reading::Value* Reading::value_of(const Key& key) const {
  const auto value = values_.find(&key);
  return value == values_.end() ? nullptr : &value->second;
}

}  // namespace lockstep::options
