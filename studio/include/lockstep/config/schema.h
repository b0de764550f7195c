// Options of a program, read from a YAML file, the environment and the command line.
//
// A program describes each of its keys once: section, name, the field of a struct that holds the value, help, limits.
// read() then fills the fields. The command line wins over the environment, the environment over the file, the file
// over the default. The default is the value of the field when the key is declared. Every value knows where it came
// from.
//
//   struct Options {
//     int max_epochs = 10;
//     double learning_rate = 0.1;
//     std::string precision = "fp32";
//   } options;
//   config::Schema schema;
//   config::Section trainer = schema.section("trainer", "How the model is trained");
//   trainer.key("max_epochs", options.max_epochs, "Passes over the data").at_least(1);
//   trainer.key("learning_rate", options.learning_rate, "The first rate").environment("LR");
//   trainer.key("precision", options.precision, "Type of the forward pass").choices({"fp32", "bf16"});
//   const auto status = schema.read({.file = "config.yaml", .environment = Environment::of_process()});
//
// Nothing here throws. Not thread-safe: one thread declares and reads. docs/configuration.md says what a file may hold.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::config {

// A field of an enumeration: the words that a file may have, and the values that they stand for.
struct ChoiceField {
  std::vector<std::string> words;
  std::function<void(std::size_t)> set;  // sets the field to the word with this number
  std::function<std::size_t()> get;
};

// The types of fields that a key may be bound to. Times are written `30s`, `5min`, `1h`, `250ms`, or as a number of
// seconds. An optional field is empty for `null` in a file and for `none` in a variable or on the command line.
using Field =
    std::variant<bool*, int*, std::int64_t*, double*, std::string*, std::chrono::milliseconds*, std::vector<int>*,
                 std::vector<std::int64_t>*, std::vector<double>*, std::vector<std::string>*, std::optional<int>*,
                 std::optional<double>*, std::optional<std::string>*, ChoiceField>;

// Where a value came from, and the place in words: "default", "config.yaml:3:9", a variable, "--learning-rate".
enum class Layer { kDefault, kFile, kEnvironment, kCommandLine };
struct Origin {
  Layer layer = Layer::kDefault;
  std::string place = "default";
};

// One key. The functions below limit and name it; each returns the key, so that they can be chained.
class Key {
 public:
  Key(std::string section, std::string name, Field field, std::string help);

  // Limits of numbers, of each number of a list, and of times in seconds; inclusive.
  Key& at_least(double least);
  Key& between(double least, double most);
  // The words that a string, or each string of a list, may be.
  Key& choices(std::vector<std::string> words);
  // Names an environment variable that may hold the key's value too. Without this call there is none. An empty variable
  // counts as not set.
  Key& environment(std::string variable);
  // Sets the option's name, with its dashes. Without this call the name is the key's, with '-' for '_'
  // ("--max-epochs"), if no other section has a key of this name. "--SECTION.KEY" always works.
  Key& option(std::string name);
  // The file, the environment or the command line must give the value.
  Key& required();

  // "trainer.max_epochs"; the name alone for keys at the top of a file.
  std::string path() const;
  const std::string& section() const { return section_; }
  const std::string& name() const { return name_; }
  const std::string& help() const { return help_; }
  const std::string& variable() const { return variable_; }
  const std::string& option_name() const { return option_; }
  const Field& field() const { return field_; }
  double least() const { return least_; }
  double most() const { return most_; }
  const std::vector<std::string>& words() const { return words_; }
  bool is_required() const { return required_; }
  // The default as a file would write it, taken when the key was declared.
  const std::string& default_text() const { return default_text_; }
  const Origin& origin() const { return origin_; }

 private:
  friend class Reader;

  std::string section_;
  std::string name_;
  Field field_;
  std::string help_;
  std::string variable_;
  std::string option_;
  std::vector<std::string> words_;
  double least_ = -std::numeric_limits<double>::infinity();
  double most_ = std::numeric_limits<double>::infinity();
  bool required_ = false;
  std::string default_text_;
  Origin origin_;
};

class Schema;

// A section of a schema: a handle, valid as long as the schema.
class Section {
 public:
  // The field must outlive the schema; its type is one of Field's. A key that is declared twice is an error of read().
  template <typename T>
  Key& key(std::string name, T& field, std::string help) {
    return add(std::move(name), Field(&field), std::move(help));
  }

  // A key for an enumeration: `names` are its words, in the order in which help and errors list them.
  template <typename Enum>
  Key& key(std::string name, Enum& field, const std::vector<std::pair<std::string, Enum>>& names, std::string help) {
    ChoiceField choice;
    for (const auto& [word, value] : names) choice.words.push_back(word);
    choice.set = [&field, names](std::size_t number) { field = names[number].second; };
    choice.get = [&field, names] {
      std::size_t number = 0;
      while (number + 1 < names.size() && names[number].second != field) ++number;
      return number;
    };
    return add(std::move(name), Field(std::move(choice)), std::move(help));
  }

 private:
  friend class Schema;
  Section(Schema& schema, std::string name) : schema_(&schema), name_(std::move(name)) {}
  Key& add(std::string name, Field field, std::string help);

  Schema* schema_;
  std::string name_;
};

// An option from a command line: its name as typed ("--max-epochs") and its value. config::parse_command_line makes
// them.
struct Option {
  std::string name;
  std::string value;
};

struct Sources {
  std::filesystem::path file{};  // empty: no file
  Environment environment{};
  std::vector<Option> options{};
};

class Schema {
 public:
  // The largest number of errors in one Status.
  static constexpr std::size_t kMostErrors = 20;
  // The largest size of a file.
  static constexpr std::size_t kMostBytes = 1 << 20;

  Schema() = default;
  ~Schema() = default;
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  // Adds a section, or returns the section of this name. "" is the top of the file, "trainer.optimizer" a section
  // within a section.
  Section section(std::string name, std::string help);

  // The top-level section `name` belongs to another program: it may be in the file, and its content is not looked at.
  void ignore_section(std::string name);
  // So do all top-level sections that this schema does not declare. A section whose name is almost one of the declared
  // is still an error, and so is a key at the top that has no section.
  void ignore_other_sections() { ignore_others_ = true; }

  // Reads all layers and then fills all fields. On an error no field is changed. The error lists all mistakes, one a
  // line and at most kMostErrors. Mistakes of the file come first, each with file, line and column (from 1):
  // kInvalidArgument; kNotFound, kPermission, kIo or kCorrupt when the file itself cannot be read. Blocks for the file.
  Status read(const Sources& sources);

  // The key of a path such as "trainer.max_epochs"; nullptr: not declared.
  const Key* find(std::string_view path) const;
  // The key of an option as typed ("--max-epochs", "--max_epochs", "--trainer.max_epochs"); nullptr: none.
  const Key* find_option(std::string_view name) const;
  const std::deque<Key>& keys() const { return keys_; }

  // The present values as YAML that read() takes, each with its origin in a comment.
  std::string print() const;
  // Returns the keys as text for --help: option, help, default, limits, variable.
  std::string help() const;

 private:
  friend class Section;
  friend class Reader;

  std::deque<Key> keys_;                                       // in order of declaration; addresses do not change
  std::vector<std::pair<std::string, std::string>> sections_;  // name, help
  std::vector<std::string> ignored_;
  bool ignore_others_ = false;
};

}  // namespace lockstep::config
