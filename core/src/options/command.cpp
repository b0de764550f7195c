#include "options/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <optional>
#include <set>

#include "base/number_text.h"
#include "base/printable.h"
#include "base/word_distance.h"
#include "options/value.h"

namespace lockstep::options {
namespace {

constexpr const char* kHelp = "--help";
constexpr const char* kHelpAll = "--help-all";
constexpr const char* kVersion = "--version";

Status mistake(const std::string& text) {
  return {ErrorCode::kInvalidArgument, printable(text)};
}

// What the option is, and what the table knows of it beside.
std::string help_of(const Key& key) {
  static const std::set<std::string> kNothing{"\"\"", "null", "[]", "false"};
  std::vector<std::string> facts;
  if (key.is_word()) return key.help();
  if (key.is_required()) facts.emplace_back("required");
  if (!kNothing.contains(key.default_text())) facts.push_back("default " + key.default_text());
  const std::string what = expected(key, /*in_file=*/false);
  if (!key.is_flag() && what != "a text") facts.push_back(what);
  if (!key.variable().empty()) facts.push_back("variable " + key.variable());
  return facts.empty() ? key.help() : fmt::format("{} ({})", key.help(), fmt::join(facts, "; "));
}

// As argparse has it: a negative number is a word.
bool is_option(const std::string& word) {
  const bool is_number =
      word.find_first_not_of("-.0123456789") == std::string::npos && number_from_text<double>(word).has_value();
  return word.size() > 1 && word[0] == '-' && !is_number;
}

Status check_tables(const Command& command) {
  LOCKSTEP_RETURN_IF_ERROR(command.table->check());
  for (const Command& inner : command.commands) LOCKSTEP_RETURN_IF_ERROR(check_tables(inner));
  return {};
}

bool has_common_keys(const Table& table) {
  const auto& keys = table.keys();
  return std::any_of(keys.begin(), keys.end(), [](const Key& key) { return key.is_common(); });
}

// What CLI11 is told of the command. It adds the options that it finds to `found`. `all_help`: --help-all was given.
void declare(CLI::App& app, const Command& command, bool all_help, std::vector<Option>& found) {
  const bool is_short = has_common_keys(*command.table) && !all_help;
  app.footer(is_short ? fmt::format("{}{} lists all options.", command.footer, kHelpAll) : command.footer);
  if (!command.version.empty()) app.set_version_flag(kVersion, command.version);
  for (const Key& key : command.table->keys()) {
    if (!key.is_option() && !key.is_word()) continue;
    const std::string name = key.is_word() ? key.name() : command.table->option_of(key);
    const std::string names = key.letter().empty() ? name : fmt::format("-{},{}", key.letter(), name);
    const auto take = [&found, name](const CLI::results_t& values) {
      for (const std::string& value : values) found.push_back({name, value});
      return true;
    };
    CLI::Option* option = app.add_option(names, take, help_of(key));
    // CLI11 lists no option whose group has no name.
    option->group(is_short && !key.is_common() && !key.section().empty() ? "" : key.group());
    option->type_name(key.is_flag() || key.is_word() ? "" : "VALUE");
    if (key.is_word() && !key.may_be_missing()) option->required();
    if (key.is_word() && is_list(key.field())) {
      option->expected(1, -1)->allow_extra_args();
    } else {
      option->take_last();
    }
  }
  if (!command.commands.empty()) app.require_subcommand(1);
  for (const Command& inner : command.commands) {
    declare(*app.add_subcommand(inner.name, inner.help), inner, all_help, found);
  }
}

// Writes the words as CLI11 understands them: an option by its full name, and its value as the next word.
class Reader {
 public:
  Reader(const Command& program, const std::vector<std::string>& words) : command_(&program), words_(words) {}

  Status run() {
    while (next_ < words_.size()) {
      const std::string& word = words_[next_];
      if (word == "--" && takes_words() && !command_->runs_program) {
        key_words_.insert(key_words_.end(), words_.begin() + static_cast<std::ptrdiff_t>(next_) + 1, words_.end());
        next_ = words_.size();
        break;
      }
      if (word == "--" || (!is_option(word) && command_->runs_program)) {
        next_ += word == "--" ? 1 : 0;
        break;
      }
      ++next_;
      LOCKSTEP_RETURN_IF_ERROR(is_option(word) ? take_option(word) : take_word(word));
    }
    rest_.insert(rest_.end(), words_.begin() + static_cast<std::ptrdiff_t>(next_), words_.end());
    return check_number_of_words();
  }

  const Command& command() const { return *command_; }
  bool all_help() const { return all_help_; }
  // Options with their values, and commands; behind "--" the words for keys.
  std::vector<std::string> plain() const {
    std::vector<std::string> all = plain_;
    if (!key_words_.empty()) all.emplace_back("--");
    all.insert(all.end(), key_words_.begin(), key_words_.end());
    return all;
  }
  // Words that no key takes.
  const std::vector<std::string>& words_left() const { return words_left_; }
  // The program's words, and those behind "--".
  const std::vector<std::string>& rest() const { return rest_; }

 private:
  bool takes_words() const {
    const auto& keys = command_->table->keys();
    return std::any_of(keys.begin(), keys.end(), [](const Key& key) { return key.is_word(); });
  }

  Status check_number_of_words() const {
    std::vector<std::string> names;
    for (const Key& key : command_->table->keys()) {
      if (!key.is_word()) continue;
      if (is_list(key.field())) return {};
      names.push_back(key.name());
    }
    const bool asks_for_help = std::find(plain_.begin(), plain_.end(), kHelp) != plain_.end();
    if (asks_for_help || key_words_.size() <= names.size()) return {};
    return mistake(
        fmt::format("expected {} alone, found {} too", fmt::join(names, " "), shown(key_words_[names.size()])));
  }

  Status take_word(const std::string& word) {
    std::vector<std::string> names;
    for (const Command& inner : command_->commands) {
      names.push_back(inner.name);
      if (inner.name != word) continue;
      plain_.push_back(word);
      command_ = &inner;
      return {};
    }
    if (names.empty()) {
      (takes_words() ? key_words_ : words_left_).push_back(word);
      return {};
    }
    const std::string best = nearest_word(word, names);
    return mistake(fmt::format("there is no command '{}'; {}", word,
                               best.empty() ? fmt::format("there are {}", fmt::join(names, ", "))
                                            : fmt::format("the nearest known one is '{}'", best)));
  }

  Status take_option(const std::string& word) {
    const bool is_long = word.starts_with("--");
    const std::size_t end = is_long ? std::min(word.find('='), word.size()) : 2;
    const std::string typed = word.substr(0, end);
    std::optional<std::string> value;
    if (word.substr(end).starts_with('=')) value = word.substr(end + 1);
    if (typed == kHelpAll && has_common_keys(*command_->table)) {
      all_help_ = true;
      return take_option(kHelp);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Name name, full_name(typed));
    plain_.push_back(name.option);
    if (name.option == kHelp || name.option == kVersion) return {};
    const Key& key = *command_->table->find_option(name.option);
    const std::string behind_letter = value ? "" : word.substr(end);
    if (name.is_negated && value) {
      return mistake(fmt::format("{} takes no value, found {}; write {}=true or {}=false", typed, shown(*value),
                                 name.option, name.option));
    }
    if (key.is_flag()) {
      if (value && value->empty()) {
        return mistake(name.option + ": expected true or false after the '=', found nothing");
      }
      plain_.push_back(value.value_or(name.is_negated ? "false" : "true"));
      return behind_letter.empty() ? Status() : take_option("-" + behind_letter);
    }
    if (!behind_letter.empty()) value = behind_letter;
    if (!value) {
      LOCKSTEP_ASSIGN_OR_RETURN(value, next_value(name.option));
    }
    plain_.push_back(*value);
    return {};
  }

  Result<std::string> next_value(const std::string& name) {
    if (next_ == words_.size() || words_[next_] == "--") return mistake(name + ": its value is missing");
    const std::string& word = words_[next_++];
    const bool is_next = word.starts_with("--") || (word.starts_with('-') && command_->table->find_option(word));
    if (!is_next) return word;
    return mistake(
        fmt::format("{0}: its value is missing: {1} is the next option; if it is meant as the value, write {0}={2}",
                    name, shown(word), word));
  }

  struct Name {
    std::string option;       // as CLI11 knows it
    bool is_negated = false;  // --no-OPTION
  };

  Result<Name> full_name(const std::string& typed) const {
    const Table& table = *command_->table;
    if (typed == kHelp || typed == "-h") return Name{kHelp};
    if (typed == kVersion && !command_->version.empty()) return Name{typed};
    if (const Key* key = table.find_option(typed)) return Name{table.option_of(*key)};
    std::string begin = typed;
    if (begin.starts_with("--")) std::replace(begin.begin() + 2, begin.end(), '_', '-');
    if (begin.starts_with("--no-")) {
      const Key* key = table.find_option("--" + begin.substr(5));
      if (key != nullptr && key->is_flag()) return Name{table.option_of(*key), /*is_negated=*/true};
    }
    std::vector<std::string> known{kHelp};
    for (const Key& key : table.keys()) {
      if (key.is_option()) known.push_back(table.option_of(key));
    }
    std::vector<std::string> meant;
    std::copy_if(known.begin(), known.end(), std::back_inserter(meant),
                 [&](const std::string& name) { return begin.starts_with("--") && name.starts_with(begin); });
    if (command_->allows_beginnings && meant.size() == 1) return Name{meant.front()};
    if (command_->allows_beginnings && meant.size() > 1) {
      return mistake(fmt::format("{} may mean {}", typed, fmt::join(meant, ", ")));
    }
    for (const Key& key : table.keys()) {
      if (key.is_option()) known.push_back("--" + key.path());
    }
    if (const std::string section = options_of_section(typed); !section.empty()) return mistake(section);
    const std::string best = nearest_word(typed, known);
    return mistake(fmt::format("unknown option {}{}", shown(typed),
                               best.empty() ? "; " + how_to_list_all() : "; the nearest known one is " + best));
  }

  std::string how_to_list_all() const {
    return fmt::format("{} lists all", has_common_keys(*command_->table) ? kHelpAll : kHelp);
  }

  // The message where a section is typed as an option, "--model" for model.name. Empty: there is no such section.
  std::string options_of_section(const std::string& typed) const {
    constexpr std::size_t kMostNames = 4;
    std::vector<std::string> names;
    for (const Key& key : command_->table->keys()) {
      if (key.is_option() && ("--" + key.path()).starts_with(typed + ".")) {
        names.push_back(command_->table->option_of(key));
      }
    }
    if (names.empty()) return "";
    const bool all = names.size() <= kMostNames;
    if (!all) names.resize(kMostNames);
    return fmt::format("{} is a section of options: {}{}", shown(typed), fmt::join(names, ", "),
                       all ? "" : ", ...; " + how_to_list_all());
  }

  const Command* command_;
  const std::vector<std::string>& words_;
  std::size_t next_ = 0;
  bool all_help_ = false;
  std::vector<std::string> plain_;
  std::vector<std::string> key_words_;
  std::vector<std::string> words_left_;
  std::vector<std::string> rest_;
};

// Nobody may read what is printed: a full disk, a closed pipe.
int end_output(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  return fail(Status::from_errno("cannot write the output", errno));
}

}  // namespace

Result<CommandLine> parse(const Command& program, const std::vector<std::string>& words) {
  LOCKSTEP_RETURN_IF_ERROR(check_tables(program));
  Reader reader(program, words);
  LOCKSTEP_RETURN_IF_ERROR(reader.run());
  CommandLine line{.command = &reader.command()};
  CLI::App app(program.help, program.name);
  try {
    declare(app, program, reader.all_help(), line.options);
    std::vector<std::string> plain = reader.plain();
    std::reverse(plain.begin(), plain.end());
    app.parse(std::move(plain));
  } catch (const CLI::CallForHelp&) {
    line.text = app.help();
    return line;
  } catch (const CLI::CallForVersion&) {
    line.text = program.version + "\n";
    return line;
  } catch (const CLI::ParseError& error) {
    return mistake(error.what());
  } catch (const CLI::Error& error) {
    return mistake(fmt::format("the program declares an option that cannot be: {}", error.what()));
  }
  line.words = reader.words_left();
  const auto& keys = line.command->table->keys();
  const auto key = std::find_if(keys.begin(), keys.end(), [](const Key& k) { return k.is_rest(); });
  for (const std::string& word : reader.rest()) {
    if (key == keys.end()) {
      line.words.push_back(word);
    } else {
      line.options.push_back({key->name(), word});
    }
  }
  return line;
}

int run(const Command& program, const std::vector<std::string>& words) {
  const Result<CommandLine> line = parse(program, words);
  if (!line.ok()) return fail(line.status());
  const auto& [command, given, words_left, text] = line.value();
  if (!text.empty()) {
    std::fputs(text.c_str(), stdout);
    return end_output(EXIT_SUCCESS);
  }
  if (!words_left.empty()) {
    return fail(mistake(fmt::format("expected options alone, found the word {}", shown(words_left[0]))));
  }
  const Status read = command->table->read({.environment = Environment::of_process(), .options = given});
  if (!read.ok()) return fail(read);
  try {
    return end_output(command->run());
  } catch (const std::exception& error) {
    return fail(Status(ErrorCode::kInternal, printable(error.what())));
  }
}

int fail(const Status& status) {
  std::fprintf(stderr, "lockstep: %s\n", status.message().c_str());
  return exit_code_of(status);
}

int exit_code_of(const Status& status) {
  return status.code() == ErrorCode::kInvalidArgument ? 2 : EXIT_FAILURE;
}

}  // namespace lockstep::options
