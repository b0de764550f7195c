#include "arguments/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>

#include "base/number_text.h"
#include "base/printable.h"
#include "base/word_distance.h"
#include "lockstep/base/environment.h"

namespace lockstep::cli {
namespace {

CLI::ParseError mistake(const std::string& text) {
  return {printable(text), CLI::ExitCodes::ExtrasError};
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

std::string with_dashes(std::string name) {
  if (name.starts_with("--")) std::replace(name.begin() + 2, name.end(), '_', '-');
  return name;
}

std::string full_name(const CLI::Option& option) {
  return "--" + option.get_lnames().front();
}

// Writes a number as CLI11 reads the same one. CLI11 alone would take 010 for 8 and 0x50 for 80, and its limits let NaN
// pass. Returns what is wrong, or nothing.
template <typename T>
std::string rewrite_number(std::string& value, const char* expected) {
  const std::optional<T> number = number_from_text<T>(value);
  if (!number || *number != *number) return fmt::format("expected {}, found '{}'", expected, printable(value));
  if constexpr (std::is_integral_v<T>) value = fmt::format("{}", *number);
  return {};
}

// Checks a value before CLI11 does.
std::function<std::string(std::string&)> first_check(const std::string& type) {
  if (type.starts_with("UINT")) {
    return [](std::string& value) { return rewrite_number<std::uint64_t>(value, "a whole number, 0 or more"); };
  }
  if (type.starts_with("INT")) {
    return [](std::string& value) { return rewrite_number<std::int64_t>(value, "a whole number"); };
  }
  if (type.starts_with("FLOAT")) return [](std::string& value) { return rewrite_number<double>(value, "a number"); };
  const std::size_t words = type.find(":{");
  if (words == std::string::npos) return nullptr;
  return [words = type.substr(words + 1)](std::string& value) {
    return value.empty() ? fmt::format("expected one of {}, found ''", words) : std::string();
  };
}

class Reader {
 public:
  Reader(const CLI::App& app, const std::vector<std::string>& words) : command_(&app), words_(words) {}

  Words run() {
    while (next_ < words_.size() && words_[next_] != "--") {
      const std::string& word = words_[next_];
      if (word.size() > 1 && word[0] == '-') {
        ++next_;
        take_option(word);
      } else if (command_->get_prefix_command()) {
        break;
      } else {
        ++next_;
        take_word(word);
      }
    }
    add_variables();
    result_.words.insert(result_.words.end(), words_.begin() + static_cast<std::ptrdiff_t>(next_), words_.end());
    return std::move(result_);
  }

 private:
  void take_word(const std::string& word) {
    result_.words.push_back(word);
    const auto commands = command_->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty()) return;
    std::vector<std::string> names;
    for (const CLI::App* command : commands) {
      names.push_back(command->get_name());
      if (names.back() != word) continue;
      command_ = command;
      options_begin_ = result_.words.size();
      return;
    }
    const std::string best = nearest_word(word, names);
    throw mistake(fmt::format("there is no command '{}'; {}", word,
                              best.empty() ? fmt::format("there are {}", fmt::join(names, ", "))
                                           : fmt::format("the nearest known one is '{}'", best)));
  }

  void take_option(const std::string& word) {
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string typed = word.substr(0, equals);
    const CLI::Option* option = find(typed);
    if (option == nullptr) return result_.words.push_back(word);  // CLI11 says what is wrong
    given_.push_back(option);
    const std::string name = option->get_lnames().empty() ? typed : full_name(*option);
    if (!takes_value(*option)) {
      if (equals + 1 == word.size()) throw mistake(name + ": expected true or false after the '=', found nothing");
      return result_.words.push_back(name + word.substr(std::min(equals, word.size())));
    }
    const std::string value = equals != std::string::npos ? word.substr(equals + 1) : next_value(name);
    const bool as_one = equals != std::string::npos && !value.empty();
    result_.words.push_back(as_one ? name + "=" + value : name);
    if (!as_one) result_.words.push_back(value);
  }

  std::string next_value(const std::string& name) {
    if (next_ == words_.size() || words_[next_] == "--") throw mistake(name + ": its value is missing");
    const std::string& word = words_[next_++];
    const bool is_option =
        word.starts_with("--") || (word.starts_with('-') && command_->get_option_no_throw(word) != nullptr);
    if (!is_option) return word;
    throw mistake(fmt::format(
        "{0}: its value is missing: {1} is the next option; if it is meant as the value, write {0}={1}", name, word));
  }

  const CLI::Option* find(const std::string& typed) const {
    if (const CLI::Option* option = command_->get_option_no_throw(typed)) return option;
    if (!typed.starts_with("--")) return nullptr;
    std::vector<const CLI::Option*> found;
    std::vector<std::string> names;
    std::vector<std::string> known;
    for (const CLI::Option* option : command_->get_options()) {
      if (option->get_lnames().empty()) continue;
      known.push_back(full_name(*option));
      if (!known.back().starts_with(with_dashes(typed))) continue;
      found.push_back(option);
      names.push_back(known.back());
    }
    if (found.size() == 1) return found.front();
    if (found.size() > 1) throw mistake(fmt::format("{} may mean {}", typed, fmt::join(names, ", ")));
    if (!command_->get_prefix_command()) return nullptr;
    const std::string best = nearest_word(typed, known);
    throw mistake(fmt::format("unknown option '{}'; {}", typed,
                              best.empty() ? fmt::format("`lockstep {} --help` lists them all", command_->get_name())
                                           : fmt::format("the nearest known one is {}", best)));
  }

  void add_variables() {
    std::vector<std::string> more;
    for (const CLI::Option* option : command_->get_options()) {
      const std::string variable = option->get_envname();
      if (variable.empty() || std::find(given_.begin(), given_.end(), option) != given_.end()) continue;
      const auto value = Environment::of_process().get(variable);
      if (!value || value->empty()) continue;
      const std::string name = full_name(*option);
      result_.from_variables.emplace_back(name, variable);
      more.push_back(name + "=" + *value);
    }
    result_.words.insert(result_.words.begin() + static_cast<std::ptrdiff_t>(options_begin_), more.begin(), more.end());
  }

  const CLI::App* command_;
  const std::vector<std::string>& words_;
  std::size_t next_ = 0;
  std::size_t options_begin_ = 0;  // in result_.words
  std::vector<const CLI::Option*> given_ = {};
  Words result_ = {};
};

}  // namespace

Words plain_words(const CLI::App& app, const std::vector<std::string>& words) {
  return Reader(app, words).run();
}

CLI::ParseError with_variable(const Words& words, const CLI::ParseError& error) {
  const std::string what = error.what();
  for (const auto& [option, variable] : words.from_variables) {
    if (what.find(option) == std::string::npos) continue;
    return {fmt::format("the variable {}: {}", variable, what), error.get_exit_code()};
  }
  return error;
}

void follow_argparse(CLI::App& app) {
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return "lockstep: " + CLI::FailureMessage::simple(failed, error);
  });
  for (CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    if (option->get_items_expected_max() == 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    if (const auto check = first_check(option->get_type_name())) option->transform(CLI::Validator(check, ""));
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) follow_argparse(*command);
}

void parse_words(CLI::App& app, const std::vector<std::string>& words) {
  follow_argparse(app);
  std::vector<std::string> plain = plain_words(app, words).words;
  std::reverse(plain.begin(), plain.end());
  app.parse(std::move(plain));
}

}  // namespace lockstep::cli
