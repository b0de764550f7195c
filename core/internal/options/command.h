// Command lines: the one place that knows CLI11. A program is a command with commands within it, each with a table of
// options.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/options/table.h"

namespace lockstep::options {

struct Command {
  std::string name;
  std::string help;
  std::function<int()> run = {};  // returns the exit code; none: a command within it runs, or another program
  std::shared_ptr<Table> table = std::make_shared<Table>();
  bool runs_program = false;       // the first word that is no option, and all behind it, are for the key rest()
  bool allows_beginnings = true;   // --nproc for --nproc-per-node, as Python's argparse does
  std::string footer = {};         // the end of --help
  std::string version = {};        // for --version; empty: there is no such option
  std::deque<Command> commands{};  // addresses do not change

  // Adds a command within this one.
  Command& add(std::string command_name, std::string command_help, std::function<int()> run_it = {}) {
    return commands.emplace_back(
        Command{.name = std::move(command_name), .help = std::move(command_help), .run = std::move(run_it)});
  }
  // Adds an option.
  template <typename T>
  Key& key(std::string key_name, T& field, std::string key_help) const {
    return table->section("", "").key(std::move(key_name), field, std::move(key_help));
  }
};

struct CommandLine {
  const Command* command = nullptr;  // the innermost one
  std::vector<Option> options{};  // by full name, in order of declaration: the last value of each, all words of a key
  std::vector<std::string> words{};  // that no key takes, and all behind "--"
  std::string text{};                // what --help or --version prints; empty: neither was given
};

// Finds the options in the words, with '-' or '_' between words:
//
//   --rdzv-id=       has an empty value; the next word is not its value
//   --nproc 2        is --nproc-per-node 2, if no other option begins like that
//   --no-shuffle     is --shuffle=false
//   -r 3, -r3        are --redirects 3
//   -mr 3            is -m -r 3, if -m is a flag
//   -5               is a word
//
// kInvalidArgument: an option that is not known, with the nearest known one, or without a value; an unknown command; a
// word too much or too few; a table with a key or an option that is declared twice or cannot be. Values are looked at
// by Table::read.
Result<CommandLine> parse(const Command& program, const std::vector<std::string>& words);

// Parses, reads the table of the command (from --config, the process's environment and the words), and runs it. Prints
// errors, --help and --version. Returns the exit code: 2 for wrong usage, 1 for other errors.
int run(const Command& program, const std::vector<std::string>& words);

// Prints the error; returns its exit code.
int fail(const Status& status);
int exit_code_of(const Status& status);

}  // namespace lockstep::options
