#include "config/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>

#include "base/printable.h"
#include "base/regular_file.h"
#include "base/word_distance.h"
#include "config/value.h"
#include "config/words.h"

namespace lockstep::config {
namespace {

std::string joined(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

Result<std::string> read_text(const std::filesystem::path& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::open(path));
  // One byte more than allowed, in case the file has grown.
  std::string text(Schema::kMostBytes + 1, '\0');
  const std::span<std::uint8_t> bytes(reinterpret_cast<std::uint8_t*>(text.data()), text.size());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::size_t count, file.read(bytes));
  if (count > Schema::kMostBytes) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{}: this file is larger than {} bytes; is it the configuration?",
                              printable(path.native()), Schema::kMostBytes));
  }
  text.resize(count);
  return text;
}

}  // namespace

Status Reader::run() {
  LOCKSTEP_RETURN_IF_ERROR(check_schema());
  if (!sources_.file.empty()) LOCKSTEP_RETURN_IF_ERROR(read_file());
  take_texts();
  for (const Key& key : schema_.keys_) {
    if (key.is_required() && !values_.contains(&key)) {
      problems_.add(fmt::format("{}: no value was given; {} is expected in the file or after {}", key.path(),
                                expected(key), key.option_name().empty() ? "--" + key.path() : key.option_name()));
    }
  }
  if (!problems_.empty()) return Status(ErrorCode::kInvalidArgument, problems_.text(Schema::kMostErrors));
  for (Key& key : schema_.keys_) {
    const auto value = values_.find(&key);
    if (value == values_.end()) continue;
    value->second.store();
    key.origin_ = value->second.origin;
  }
  return {};
}

Status Reader::check_schema() const {
  std::set<std::string> paths;
  for (const Key& key : schema_.keys_) {
    if (!paths.insert(key.path()).second) {
      return Status(ErrorCode::kInvalidArgument, fmt::format("the program declares the key {} twice", key.path()));
    }
  }
  return {};
}

Status Reader::read_file() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, read_text(sources_.file));
  const std::optional<Node> root = parse_document(text, problems_);
  if (!root) return {};
  if (root->kind != Node::Kind::kMap) {
    problems_.add(root->place, fmt::format("expected sections with keys, found {}", found(*root)));
    return {};
  }
  walk(*root, "");
  return {};
}

void Reader::walk(const Node& map, const std::string& section) {
  for (const Member& member : map.members) take_member(member, section);
}

void Reader::take_member(const Member& member, const std::string& section) {
  const std::string path = joined(section, member.name);
  // A dot in a name would make it look like a key of a section.
  const bool dotted = member.name.find('.') != std::string::npos;
  if (const Key* key = dotted ? nullptr : schema_.find(path); key != nullptr) {
    const std::string where = problems_.name_of(member.value.place);
    return take_value(*key, member.value, where, {Layer::kFile, where});
  }
  if (!dotted && is_section(path)) {
    if (member.value.kind == Node::Kind::kMap) return walk(member.value, path);
    if (member.value.kind == Node::Kind::kNull) return;
    return problems_.add(member.value.place,
                         fmt::format("{}: expected a section with keys, found {}", path, found(member.value)));
  }
  if (section.empty() && is_of_others(member)) return;
  tell_unknown(member, section);
}

void Reader::tell_unknown(const Member& member, const std::string& section) {
  const std::vector<std::string> names = names_in(section);
  const bool map = member.value.kind == Node::Kind::kMap;
  std::string message = fmt::format("unknown {} {}", map ? "section" : "key", shown(member.name));
  if (!section.empty()) message += fmt::format(" in section '{}'", section);
  std::string hint = suggestion(member.name, names);
  if (nearest_word(member.name, names).empty()) {
    for (const Key& key : schema_.keys_) {
      if (key.name() == member.name)
        hint = fmt::format("; the key of this name belongs to section '{}'", key.section());
    }
  }
  problems_.add(member.place, message + hint);
}

void Reader::take_value(const Key& key, const Node& node, const std::string& subject, Origin origin) {
  auto store = to_value(key, node);
  if (store) {
    values_[&key] = {std::move(*store), std::move(origin)};
    return;
  }
  const std::string message = fmt::format("expected {}, found {}", expected(key), found(node));
  if (origin.layer == Layer::kFile) {
    problems_.add(node.place, fmt::format("{}: {}", key.path(), message));
  } else {
    problems_.add(fmt::format("{}: {}", subject, message));
  }
}

void Reader::take_texts() {
  for (const Key& key : schema_.keys_) {
    if (key.variable().empty()) continue;
    const std::optional<std::string> text = sources_.environment.get(key.variable());
    if (!text) continue;
    take_value(key, node_from_text(key, *text), fmt::format("the variable {}", key.variable()),
               {Layer::kEnvironment, key.variable()});
  }
  for (const Option& option : sources_.options) {
    const Key* key = schema_.find_option(option.name);
    if (key == nullptr) {
      problems_.add(fmt::format("unknown option {}", shown(option.name)));
      continue;
    }
    take_value(*key, node_from_text(*key, option.value), option.name, {Layer::kCommandLine, option.name});
  }
}

bool Reader::is_section(const std::string& path) const {
  return std::any_of(schema_.sections_.begin(), schema_.sections_.end(), [&](const auto& section) {
    return section.first == path || section.first.starts_with(path + ".");
  });
}

bool Reader::is_of_others(const Member& member) const {
  const auto& ignored = schema_.ignored_;
  if (std::find(ignored.begin(), ignored.end(), member.name) != ignored.end()) return true;
  if (!schema_.ignore_others_ || member.value.kind != Node::Kind::kMap) return false;
  return nearest_word(member.name, names_in("")).empty();
}

std::vector<std::string> Reader::names_in(const std::string& section) const {
  std::vector<std::string> names;
  for (const Key& key : schema_.keys_) {
    if (key.section() == section) names.push_back(key.name());
  }
  const std::string prefix = section.empty() ? "" : section + ".";
  for (const auto& [name, help] : schema_.sections_) {
    if (name.size() <= prefix.size() || !name.starts_with(prefix)) continue;
    const std::string inner = name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size());
    if (std::find(names.begin(), names.end(), inner) == names.end()) names.push_back(inner);
  }
  return names;
}

}  // namespace lockstep::config
