#include "lockstep/options/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "options/reading.h"
#include "options/value.h"

namespace lockstep::options {
namespace {

std::string with_dashes(std::string text) {
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

// Writes sections within sections.
class Printer {
 public:
  Printer(const Table& table, bool comment_defaults) : table_(table), comment_defaults_(comment_defaults) {}

  std::string text() {
    print("", 0);
    return text_;
  }

 private:
  void print(const std::string& section, std::size_t indent) {
    for (const Key& key : table_.keys()) {
      if (key.section() != section || !key.is_in_file()) continue;
      std::string line = fmt::format("{:{}}{}: {}", "", indent, key.name(), value_text(key.field()));
      if (comment_defaults_ && !key.is_given()) line.replace(0, std::min<std::size_t>(indent, 2), "# ");
      text_ += fmt::format("{:<36}  # {}\n", line, printable(key.origin().place));
    }
    for (const std::string& inner : table_.sections_below(section)) {
      text_ += fmt::format("{:{}}{}:\n", "", indent, inner.substr(section.empty() ? 0 : section.size() + 1));
      print(inner, indent + 2);
    }
  }

  const Table& table_;
  bool comment_defaults_;
  std::string text_;
};

}  // namespace

Key::Key(std::string section, std::string group, std::string name, Field field, std::string help)
    : section_(std::move(section)),
      group_(std::move(group)),
      name_(std::move(name)),
      field_(std::move(field)),
      help_(std::move(help)) {
  if (std::holds_alternative<std::chrono::milliseconds*>(field_)) least_ = 0;
  default_text_ = value_text(field_);
}

std::string Key::path() const {
  return section_.empty() ? name_ : section_ + "." + name_;
}

Key& Section::add(std::string name, Field field, std::string help) {
  std::string variable = prefix_.empty() ? "" : prefix_ + name;
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) { return std::toupper(c); });
  return table_->keys_.emplace_back(name_, group_, std::move(name), std::move(field), std::move(help))
      .environment(std::move(variable));
}

Table::Table(bool reads_file) {
  if (!reads_file) return;
  Section top = Section(*this, "", "Configuration");
  top.key("config", config_, "A YAML file with these options in sections; options on the command line win")
      .only_as_option();
  top.key("print_config", print_config_, "Print all options and where each comes from, and end").only_as_option();
}

Section Table::section(std::string name, std::string help) {
  auto known = std::find_if(sections_.begin(), sections_.end(), [&](const auto& s) { return s.first == name; });
  if (known == sections_.end()) known = sections_.emplace(known, name, std::move(help));
  std::string group = name.empty() ? "Options" : fmt::format("{} ({})", known->second, name);
  return Section(*this, std::move(name), std::move(group));
}

Status Table::read_file(const std::filesystem::path& file, Reading& reading) {
  return {ErrorCode::kUnsupported, fmt::format("{}: this program reads no file", file.native())};
}

Status Table::check() const {
  std::set<std::string> paths;
  std::set<std::string> options;
  for (const Key& key : keys_) {
    if (!paths.insert(key.path()).second) {
      return {ErrorCode::kInvalidArgument, fmt::format("the program declares the key {} twice", key.path())};
    }
    if (key.is_option() && !options.insert(option_of(key)).second) {
      return {ErrorCode::kInvalidArgument, fmt::format("the program declares the option {} twice", option_of(key))};
    }
  }
  return {};
}

Status Table::read(const Sources& sources) {
  LOCKSTEP_RETURN_IF_ERROR(check());
  std::filesystem::path file = sources.file;
  for (const Option& option : sources.options) {
    if (option.name == "--config") file = option.value;
  }
  Reading reading(file.native());
  if (!file.empty()) LOCKSTEP_RETURN_IF_ERROR(read_file(file, reading));
  reading.take_variables(*this, sources);
  reading.take_options(*this, sources.options);
  for (const Key& key : keys_) {
    if (!key.is_required() || reading.value_of(key) != nullptr) continue;
    reading.problems.add(fmt::format("{}: no value was given; {} is expected in the file or after {}", key.path(),
                                     expected(key, true),
                                     key.option_name().empty() ? "--" + key.path() : key.option_name()));
  }
  if (!reading.problems.empty()) return {ErrorCode::kInvalidArgument, reading.problems.text(kMostErrors)};
  for (Key& key : keys_) {
    const Reading::Value* value = reading.value_of(key);
    if (value == nullptr) continue;
    value->store();
    key.origin_ = value->origin;
  }
  return {};
}

const Key* Table::find(std::string_view path) const {
  const auto key = std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.path() == path; });
  return key == keys_.end() ? nullptr : &*key;
}

const Key* Table::find_option(std::string_view name) const {
  const std::string wanted = with_dashes(std::string(name));
  const Key* by_name = nullptr;
  int same_name = 0;
  for (const Key& key : keys_) {
    if (!key.is_option()) {
      if (key.name() == name && (key.is_word() || key.is_rest())) return &key;
      continue;
    }
    if (!key.letter().empty() && name == "-" + key.letter()) return &key;
    if (wanted == with_dashes(key.option_name()) || wanted == "--" + with_dashes(key.path())) return &key;
    if (wanted == "--" + with_dashes(key.name())) {
      by_name = &key;
      ++same_name;
    }
  }
  return same_name == 1 && by_name->option_name().empty() ? by_name : nullptr;
}

std::string Table::option_of(const Key& key) const {
  if (!key.option_name().empty()) return key.option_name();
  const std::string name = "--" + with_dashes(key.name());
  return find_option(name) == &key ? name : "--" + key.path();
}

std::vector<std::string> Table::sections_below(const std::string& section) const {
  const std::string prefix = section.empty() ? "" : section + ".";
  std::vector<std::string> names;
  for (const auto& [name, help] : sections_) {
    if (name.size() <= prefix.size() || !name.starts_with(prefix)) continue;
    const std::string inner = name.substr(0, name.find('.', prefix.size()));
    if (std::find(names.begin(), names.end(), inner) == names.end()) names.push_back(inner);
  }
  return names;
}

std::string Table::print(bool comment_defaults) const {
  return Printer(*this, comment_defaults).text();
}

}  // namespace lockstep::options
