#include "lockstep/config/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include "base/printable.h"
#include "base/word_distance.h"
#include "config/words.h"

namespace lockstep::config {
namespace {

class Parser {
 public:
  Parser(const Schema& schema, std::vector<std::string> words) : schema_(schema), words_(std::move(words)) {}

  Result<CommandLine> run() {
    while (next_ < words_.size()) {
      const std::string word = words_[next_++];
      if (word == "--") {
        line_.rest.insert(line_.rest.end(), words_.begin() + static_cast<std::ptrdiff_t>(next_), words_.end());
        break;
      }
      LOCKSTEP_RETURN_IF_ERROR(take(word));
    }
    return std::move(line_);
  }

 private:
  Status take(const std::string& word) {
    if (word == "--help" || word == "-h") {
      line_.help = true;
      return {};
    }
    if (!word.starts_with("--")) {
      line_.rest.push_back(word);
      return {};
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = word.substr(equals + 1);
    if ((name == "--print-config" || name == "--print_config") && !value) {
      line_.print_config = true;
      return {};
    }
    if (name == "--config") {
      LOCKSTEP_ASSIGN_OR_RETURN(line_.file, value_of(name, std::move(value)));
      return {};
    }
    return take_key(name, std::move(value));
  }

  Status take_key(const std::string& name, std::optional<std::string> value) {
    if (const Key* key = schema_.find_option(name); key != nullptr) {
      if (!std::holds_alternative<bool*>(key->field())) {
        LOCKSTEP_ASSIGN_OR_RETURN(value, value_of(name, std::move(value)));
      } else if (!value) {
        value = "true";
      }
      line_.options.push_back({name, std::move(*value)});
      return {};
    }
    if (name.starts_with("--no-") && !value) {
      const std::string positive = "--" + name.substr(5);
      const Key* key = schema_.find_option(positive);
      if (key != nullptr && std::holds_alternative<bool*>(key->field())) {
        line_.options.push_back({positive, "false"});
        return {};
      }
    }
    return unknown(name);
  }

  Result<std::string> value_of(const std::string& name, std::optional<std::string> value) {
    if (value) return std::move(*value);
    if (next_ == words_.size()) {
      return Status(ErrorCode::kInvalidArgument, fmt::format("{}: its value is missing", name));
    }
    const std::string& word = words_[next_++];
    if (!word.starts_with("--")) return word;
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{0}: its value is missing: {1} is the next option; if it is meant as the value, write "
                              "{0}={2}",
                              name, shown(word), printable(word)));
  }

  Status unknown(const std::string& name) const {
    std::vector<std::string> known{"--config", "--print-config", "--help"};
    for (const Key& key : schema_.keys()) {
      for (std::string option : {key.option_name(), "--" + key.name(), "--" + key.path()}) {
        std::replace(option.begin(), option.end(), '_', '-');
        if (schema_.find_option(option) != nullptr) known.push_back(std::move(option));
      }
    }
    const std::string best = nearest_word(name, known);
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("unknown option {}{}", shown(name),
                    best.empty() ? "; --help lists all" : fmt::format("; the nearest known one is {}", best)));
  }

  const Schema& schema_;
  std::vector<std::string> words_;
  std::size_t next_ = 0;
  CommandLine line_;
};

}  // namespace

Result<CommandLine> parse_command_line(const Schema& schema, int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) words.emplace_back(argv[i]);
  return Parser(schema, std::move(words)).run();
}

Result<bool> configure(Schema& schema, int argc, const char* const* argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(CommandLine line, parse_command_line(schema, argc, argv));
  if (line.help) {
    const std::string text = schema.help() +
                             "\n  --config FILE              a YAML file with these keys in their sections\n"
                             "  --print-config             print all values and where each comes from, and end\n";
    std::fputs(text.c_str(), stdout);
    return false;
  }
  if (!line.rest.empty()) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("expected options alone, found the word {}; a file of options is given with --config FILE, "
                    "and the value of a flag with '=': --FLAG=false",
                    shown(line.rest.front())));
  }
  LOCKSTEP_RETURN_IF_ERROR(schema.read({line.file, Environment::of_process(), std::move(line.options)}));
  if (line.print_config) {
    std::fputs(schema.print().c_str(), stdout);
    return false;
  }
  return true;
}

}  // namespace lockstep::config
