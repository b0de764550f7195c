#include "lockstep/config/schema.h"

#include <algorithm>
#include <utility>

#include "config/reader.h"
#include "config/value.h"

namespace lockstep::config {
namespace {

std::string with_dashes(std::string text) {
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace

Key::Key(std::string section, std::string name, Field field, std::string help)
    : section_(std::move(section)), name_(std::move(name)), field_(std::move(field)), help_(std::move(help)) {
  if (std::holds_alternative<std::chrono::milliseconds*>(field_)) least_ = 0;
  default_text_ = value_text(field_);
}

Key& Key::at_least(double least) {
  least_ = least;
  return *this;
}

Key& Key::between(double least, double most) {
  least_ = least;
  most_ = most;
  return *this;
}

Key& Key::choices(std::vector<std::string> words) {
  words_ = std::move(words);
  return *this;
}

Key& Key::environment(std::string variable) {
  variable_ = std::move(variable);
  return *this;
}

Key& Key::option(std::string name) {
  option_ = std::move(name);
  return *this;
}

Key& Key::required() {
  required_ = true;
  return *this;
}

std::string Key::path() const {
  return section_.empty() ? name_ : section_ + "." + name_;
}

Key& Section::add(std::string name, Field field, std::string help) {
  return schema_->keys_.emplace_back(name_, std::move(name), std::move(field), std::move(help));
}

Section Schema::section(std::string name, std::string help) {
  const bool known = std::any_of(sections_.begin(), sections_.end(), [&](const auto& s) { return s.first == name; });
  if (!known) sections_.emplace_back(name, std::move(help));
  return Section(*this, std::move(name));
}

void Schema::ignore_section(std::string name) {
  ignored_.push_back(std::move(name));
}

Status Schema::read(const Sources& sources) {
  return Reader(*this, sources).run();
}

const Key* Schema::find(std::string_view path) const {
  const auto key = std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.path() == path; });
  return key == keys_.end() ? nullptr : &*key;
}

const Key* Schema::find_option(std::string_view name) const {
  if (!name.starts_with("--")) return nullptr;
  const std::string wanted = with_dashes(std::string(name));
  const Key* by_name = nullptr;
  int same_name = 0;
  for (const Key& key : keys_) {
    if (wanted == with_dashes(key.option_name()) || wanted == "--" + with_dashes(key.path())) return &key;
    if (wanted == "--" + with_dashes(key.name())) {
      by_name = &key;
      ++same_name;
    }
  }
  return same_name == 1 && by_name->option_name().empty() ? by_name : nullptr;
}

}  // namespace lockstep::config
