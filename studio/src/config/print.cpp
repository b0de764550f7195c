#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/printable.h"
#include "config/value.h"
#include "lockstep/config/schema.h"

namespace lockstep::config {
namespace {

std::string option_of(const Schema& schema, const Key& key) {
  if (!key.option_name().empty()) return key.option_name();
  std::string name = "--" + key.name();
  std::replace(name.begin(), name.end(), '_', '-');
  return schema.find_option(name) == &key ? name : "--" + key.path();
}

// Writes sections within sections.
class Printer {
 public:
  Printer(const std::deque<Key>& keys, std::vector<std::string> sections)
      : keys_(keys), sections_(std::move(sections)) {}

  std::string text() {
    print("", 0);
    return text_;
  }

 private:
  void print(const std::string& section, std::size_t indent) {
    for (const Key& key : keys_) {
      if (key.section() != section) continue;
      const std::string line = fmt::format("{:{}}{}: {}", "", indent, key.name(), value_text(key.field()));
      text_ += fmt::format("{:<36}  # {}\n", line, printable(key.origin().place));
    }
    for (const std::string& inner : names_below(section)) {
      text_ += fmt::format("{:{}}{}:\n", "", indent, inner.substr(section.empty() ? 0 : section.size() + 1));
      print(inner, indent + 2);
    }
  }

  // The sections one level below, by their whole names, in order of declaration.
  std::vector<std::string> names_below(const std::string& section) const {
    const std::string prefix = section.empty() ? "" : section + ".";
    std::vector<std::string> names;
    for (const std::string& name : sections_) {
      if (name.size() <= prefix.size() || !name.starts_with(prefix)) continue;
      const std::string inner = name.substr(0, name.find('.', prefix.size()));
      if (std::find(names.begin(), names.end(), inner) == names.end()) names.push_back(inner);
    }
    return names;
  }

  const std::deque<Key>& keys_;
  std::vector<std::string> sections_;
  std::string text_;
};

}  // namespace

std::string Schema::print() const {
  std::vector<std::string> names;
  names.reserve(sections_.size());
  for (const auto& [name, help] : sections_) names.push_back(name);
  return Printer(keys_, std::move(names)).text();
}

std::string Schema::help() const {
  std::string text;
  for (const auto& [section, section_help] : sections_) {
    text += fmt::format("{}{}{}\n", section, section.empty() ? "" : ": ", section_help);
    for (const Key& key : keys_) {
      if (key.section() != section) continue;
      std::string facts = key.is_required() ? "required" : fmt::format("default {}", key.default_text());
      facts += fmt::format("; {}", expected(key));
      if (!key.variable().empty()) facts += fmt::format("; variable {}", key.variable());
      text += fmt::format("  {:<26} {} ({})\n", option_of(*this, key), key.help(), facts);
    }
  }
  return text;
}

}  // namespace lockstep::config
