// The words of a command line, for CLI11, where its rules are not those of Python's argparse and of torchrun.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): as the library spells it
class App;
class ParseError;
}  // namespace CLI

namespace lockstep::cli {

struct Words {
  std::vector<std::string> words;
  // Options whose value is that of a variable (PET_...), each with the name of this variable.
  std::vector<std::pair<std::string, std::string>> from_variables = {};
};

// Writes options as CLI11 understands them:
//
//   --rdzv-id=        becomes two words, of which the second is empty; CLI11 would take the next word for the value
//   --nproc 2         becomes --nproc-per-node 2, if no other option begins like that
//   PET_NNODES=2      becomes --nnodes=2, if the command line has no --nnodes
//
// Throws CLI::ParseError for an option without a value, for an unknown command and, for a command that ends with the
// name of a program, for an unknown option. What follows "--" or that name stays as it is.
Words plain_words(const CLI::App& app, const std::vector<std::string>& words);

// An error about an option whose value is that of a variable names the variable too.
CLI::ParseError with_variable(const Words& words, const CLI::ParseError& error);

// Makes the last one of an option's values count and reads whole numbers as decimal ones, as argparse does. Errors
// begin with "lockstep: ".
void follow_argparse(CLI::App& app);

// Parses with these rules. `words` are without the name of `lockstep`.
void parse_words(CLI::App& app, const std::vector<std::string>& words);

}  // namespace lockstep::cli
