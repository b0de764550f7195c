#include "lockstep/config/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/printable.h"
#include "base/regular_file.h"
#include "base/word_distance.h"
#include "config/document.h"
#include "options/reading.h"
#include "options/value.h"

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

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kMostListed = 12;
  if (const std::string best = nearest_word(word, known); !best.empty()) {
    return fmt::format("; the nearest known one is '{}'", best);
  }
  if (known.empty()) return "";
  const std::size_t count = std::min(kMostListed, known.size());
  return fmt::format("; known are {}{}",
                     fmt::join(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(count), ", "),
                     count < known.size() ? ", ..." : "");
}

}  // namespace

// Finds the values and the mistakes of a file.
class FileWalk {
 public:
  FileWalk(const Schema& schema, options::Reading& reading) : schema_(schema), reading_(reading) {}

  void walk(const Node& map, const std::string& section) {
    for (const Member& member : map.members) take_member(member, section);
  }

 private:
  void take_member(const Member& member, const std::string& section) {
    const std::string path = joined(section, member.name);
    // A dot in a name would make it look like a key of a section.
    const bool dotted = member.name.find('.') != std::string::npos;
    if (const Key* key = dotted ? nullptr : schema_.find(path); key != nullptr && key->is_in_file()) {
      return reading_.take_from_file(*key, member.value);
    }
    if (!dotted && is_section(path)) {
      if (member.value.kind == Node::Kind::kMap) return walk(member.value, path);
      if (member.value.kind == Node::Kind::kNull) return;
      return reading_.problems.add(member.value.place, fmt::format("{}: expected a section with keys, found {}", path,
                                                                   options::found(member.value)));
    }
    if (section.empty() && is_of_others(member)) return;
    tell_unknown(member, section);
  }

  void tell_unknown(const Member& member, const std::string& section) {
    const std::vector<std::string> names = names_in(section);
    const bool map = member.value.kind == Node::Kind::kMap;
    std::string message = fmt::format("unknown {} {}", map ? "section" : "key", options::shown(member.name));
    if (!section.empty()) message += fmt::format(" in section '{}'", section);
    std::string hint = suggestion(member.name, names);
    if (nearest_word(member.name, names).empty()) {
      for (const Key& key : schema_.keys()) {
        if (key.name() == member.name && key.is_in_file())
          hint = fmt::format("; the key of this name belongs to section '{}'", key.section());
      }
    }
    reading_.problems.add(member.place, message + hint);
  }

  bool is_section(const std::string& path) const {
    return std::any_of(schema_.sections().begin(), schema_.sections().end(), [&](const auto& section) {
      return section.first == path || section.first.starts_with(path + ".");
    });
  }

  bool is_of_others(const Member& member) const {
    const auto& ignored = schema_.ignored_;
    if (std::find(ignored.begin(), ignored.end(), member.name) != ignored.end()) return true;
    if (!schema_.ignore_others_ || member.value.kind != Node::Kind::kMap) return false;
    return nearest_word(member.name, names_in("")).empty();
  }

  std::vector<std::string> names_in(const std::string& section) const {
    std::vector<std::string> names;
    for (const Key& key : schema_.keys()) {
      if (key.section() == section && key.is_in_file()) names.push_back(key.name());
    }
    for (const std::string& inner : schema_.sections_below(section)) {
      names.push_back(inner.substr(section.empty() ? 0 : section.size() + 1));
    }
    return names;
  }

  const Schema& schema_;
  options::Reading& reading_;
};

Status Schema::read_file(const std::filesystem::path& file, options::Reading& reading) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, text_ ? Result<std::string>(*text_) : read_text(file));
  const std::optional<Node> root = parse_document(text, reading.problems);
  if (!root) return {};
  if (root->kind == Node::Kind::kMap) {
    FileWalk(*this, reading).walk(*root, "");
  } else {
    reading.problems.add(root->place, fmt::format("expected sections with keys, found {}", options::found(*root)));
  }
  return {};
}

}  // namespace lockstep::config
