// The table of a program's options. One declaration gives an option its name, type, default, help and limits, its
// variable, and its key in a file: the command line, the environment, --help, --print-config and the errors follow from
// this declaration. lockstep/config/schema.h is a table that reads a YAML file too, and shows an example.
//
// The command line wins over the environment, the environment over the file, the file over the default. The default is
// the value of the field when the option is declared. Every value knows where it came from.
//
// Nothing here throws. Not thread-safe: one thread declares and reads.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::options {

// A field whose value a function reads from text: an enumeration, or a type that the table does not know.
struct TextField {
  std::vector<std::string> words;  // all valid texts; empty: there is no fixed list
  // Returns a function that stores the value of the text. Without `words`, an error says what was expected and found.
  std::function<Result<std::function<void()>>(const std::string&)> read;
  std::function<std::string()> text;  // returns the present value as text
};

// The types of fields that a key may be bound to. Times are written `30s`, `5min`, `1h`, `250ms`, or as a number of
// seconds. An optional field is empty for `null` in a file and for `none` in a variable or on the command line.
using Field =
    std::variant<bool*, int*, std::int64_t*, double*, std::string*, std::chrono::milliseconds*, std::vector<int>*,
                 std::vector<std::int64_t>*, std::vector<double>*, std::vector<std::string>*, std::optional<int>*,
                 std::optional<std::int64_t>*, std::optional<double>*, std::optional<std::string>*, TextField>;

// Where a value came from, and the place in words: "default", "config.yaml:3:9", a variable, "--learning-rate".
enum class Layer { kDefault, kFile, kEnvironment, kCommandLine };
struct Origin {
  Layer layer = Layer::kDefault;
  std::string place = "default";
  std::string text{};  // the text of the variable or option, as given
};

// One key. The functions below limit and name it; each returns the key, so that they can be chained.
class Key {
 public:
  // `group`: the title above the option in --help.
  Key(std::string section, std::string group, std::string name, Field field, std::string help);

  // Limits of numbers, of each number of a list, and of times in seconds; inclusive.
  Key& at_least(double least) { return set(least_, least); }
  Key& between(double least, double most) { return at_least(least).set(most_, most); }
  // The words that a string, or each string of a list, may be.
  Key& choices(std::vector<std::string> words) { return set(words_, std::move(words)); }
  // Names an environment variable that may hold the key's value too. Without this call there is none. An empty variable
  // counts as not set.
  Key& environment(std::string variable) { return set(variable_, std::move(variable)); }
  // One letter: "r" for -r.
  Key& letter(std::string letter) { return set(letter_, std::move(letter)); }
  // Sets the option's name, with its dashes. Without this call the name is the key's, with '-' for '_'
  // ("--max-epochs"), if no other section has a key of this name. "--SECTION.KEY" always works.
  Key& option(std::string name) { return set(option_, std::move(name)); }
  // --help lists the common options and the options that are in no section; --help-all lists all. If no key is common,
  // --help lists all.
  Key& common() { return set(common_, true); }
  // The file, the environment or the command line must give the value.
  Key& required() { return set(required_, true); }
  // The key is an option, and cannot be given in a file.
  Key& only_as_option() { return set(kind_, Kind::kOption); }
  // The key can be given in a file only.
  Key& only_in_file() { return set(kind_, Kind::kFile); }
  // The key takes a word of the command line that is no option. A key whose field is a list takes all words that are
  // left.
  Key& word() { return set(kind_, Kind::kWord); }
  // As word(), for a list that may be empty.
  Key& optional_words() { return set(kind_, Kind::kOptionalWords); }
  // The words behind "--"; for a command that runs a program, this program and its arguments. A file may have them.
  Key& rest() { return set(kind_, Kind::kRest); }

  // "trainer.max_epochs"; the name alone for keys at the top of a file.
  std::string path() const;
  const std::string& section() const { return section_; }
  const std::string& name() const { return name_; }
  const std::string& group() const { return group_; }
  const std::string& help() const { return help_; }
  const std::string& letter() const { return letter_; }
  bool is_option() const { return kind_ == Kind::kBoth || kind_ == Kind::kOption; }
  bool is_in_file() const { return kind_ == Kind::kBoth || kind_ == Kind::kFile || kind_ == Kind::kRest; }
  bool is_word() const { return kind_ == Kind::kWord || kind_ == Kind::kOptionalWords; }
  bool may_be_missing() const { return kind_ == Kind::kOptionalWords; }
  bool is_rest() const { return kind_ == Kind::kRest; }
  bool is_flag() const { return std::holds_alternative<bool*>(field_); }
  const std::string& variable() const { return variable_; }
  const std::string& option_name() const { return option_; }
  const Field& field() const { return field_; }
  double least() const { return least_; }
  double most() const { return most_; }
  const std::vector<std::string>& words() const { return words_; }
  bool is_required() const { return required_; }
  bool is_common() const { return common_; }
  // The default as a file would write it, taken when the key was declared.
  const std::string& default_text() const { return default_text_; }
  const Origin& origin() const { return origin_; }
  bool is_given() const { return origin_.layer != Layer::kDefault; }

 private:
  friend class Table;
  enum class Kind { kBoth, kOption, kFile, kWord, kOptionalWords, kRest };

  template <typename T>
  Key& set(T& member, T value) {
    member = std::move(value);
    return *this;
  }

  std::string section_;
  std::string group_;
  std::string name_;
  Field field_;
  std::string help_;
  std::string variable_;
  std::string option_;
  std::string letter_;
  std::vector<std::string> words_;
  double least_ = -std::numeric_limits<double>::infinity();
  double most_ = std::numeric_limits<double>::infinity();
  bool required_ = false;
  bool common_ = false;
  Kind kind_ = Kind::kBoth;
  std::string default_text_;
  Origin origin_;
};

class Table;
class Reading;

// A section of a table: a handle, valid as long as the table.
class Section {
 public:
  // The field must outlive the table; its type is one of Field's. A key that is declared twice is an error of read().
  template <typename T>
  Key& key(std::string name, T& field, std::string help) {
    return add(std::move(name), Field(&field), std::move(help));
  }

  // A key for an enumeration: `names` are its words, in the order in which help and errors list them.
  template <typename Enum>
  Key& key(std::string name, Enum& field, const std::vector<std::pair<std::string, Enum>>& names, std::string help) {
    TextField text;
    for (const auto& [word, value] : names) text.words.push_back(word);
    text.read = [&field, names](const std::string& given) -> Result<std::function<void()>> {
      const auto found = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == given; });
      if (found == names.end()) return Status(ErrorCode::kInvalidArgument, "");
      return std::function<void()>([&field, value = found->second] { field = value; });
    };
    text.text = [&field, names] {
      return std::find_if(names.begin(), names.end() - 1, [&](const auto& n) { return n.second == field; })->first;
    };
    return add(std::move(name), Field(std::move(text)), std::move(help));
  }

  // A key for a type of the program's own. `read` turns text into a Result<T>; `text` is the present value as text.
  template <typename T, typename Read>
  Key& key_of_text(std::string name, T& field, std::string text, Read read, std::string help) {
    const auto present = std::make_shared<std::string>(std::move(text));
    const auto store = [&field, read, present](const std::string& given) -> Result<std::function<void()>> {
      Result<T> value = read(given);
      if (!value.ok()) return value.status();
      return std::function<void()>([&field, present, given, value = std::move(value).value()] {
        field = value;
        *present = given;
      });
    };
    return add(std::move(name), Field(TextField{{}, store, [present] { return *present; }}), std::move(help));
  }

  // The same section under a title of its own in --help.
  Section group(std::string title) const { return Section(*table_, name_, std::move(title)); }
  // The same section; keys that are declared through the result have environment variables, PREFIX_NAME.
  Section variables(std::string prefix) const {
    Section section = *this;
    section.prefix_ = std::move(prefix);
    return section;
  }

 private:
  friend class Table;
  Section(Table& table, std::string name, std::string group)
      : table_(&table), name_(std::move(name)), group_(std::move(group)) {}
  Key& add(std::string name, Field field, std::string help);

  Table* table_;
  std::string name_;
  std::string group_;
  std::string prefix_{};
};

// An option from a command line: its name ("--max-epochs") and its value.
struct Option {
  std::string name;
  std::string value;
};

struct Sources {
  std::filesystem::path file{};  // --config, where it is given, wins; no file is read if both are empty
  Environment environment{};
  std::vector<Option> options{};
};

class Table {
 public:
  // The largest number of errors in one Status.
  static constexpr std::size_t kMostErrors = 20;

  // `reads_file`: the options --config and --print-config are among the options.
  explicit Table(bool reads_file = false);
  virtual ~Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Adds a section, or returns the section of this name. "" is the top of the file, "trainer.optimizer" a section
  // within a section.
  Section section(std::string name, std::string help);

  // kInvalidArgument: a key or an option is declared twice.
  Status check() const;

  // Reads all layers and then fills all fields. On an error no field is changed. The error lists all mistakes, one a
  // line and at most kMostErrors. Mistakes of the file come first, each with file, line and column (from 1):
  // kInvalidArgument; kNotFound, kPermission, kIo or kCorrupt when the file itself cannot be read. Blocks for the file.
  Status read(const Sources& sources);

  // The key of a path such as "trainer.max_epochs"; nullptr: not declared.
  const Key* find(std::string_view path) const;
  // The key of an option as typed ("--max-epochs", "--max_epochs", "--trainer.max_epochs", "-r"), or of a word's name;
  // nullptr: none.
  const Key* find_option(std::string_view name) const;
  // The option of a key: "--max-epochs".
  std::string option_of(const Key& key) const;
  const std::deque<Key>& keys() const { return keys_; }
  const std::vector<std::pair<std::string, std::string>>& sections() const { return sections_; }  // name, help
  // The sections one level below a section, by their whole names, in order of declaration.
  std::vector<std::string> sections_below(const std::string& section) const;

  // The present values as a file that read() takes, each with its origin in a comment. `comment_defaults`: a value that
  // is the default is a comment too.
  std::string print(bool comment_defaults = false) const;
  // Whether --print-config was given.
  bool print_config() const { return print_config_; }

 protected:
  // Gives the values and mistakes of a file to `reading`; an error: the file cannot be read.
  virtual Status read_file(const std::filesystem::path& file, Reading& reading);

 private:
  friend class Section;

  std::deque<Key> keys_;                                       // in order of declaration; addresses do not change
  std::vector<std::pair<std::string, std::string>> sections_;  // name, help
  std::string config_;
  bool print_config_ = false;
};

}  // namespace lockstep::options
