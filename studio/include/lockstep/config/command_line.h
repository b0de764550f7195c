// The command line of a program whose options are a config::Schema.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/config/schema.h"

namespace lockstep::config {

struct CommandLine {
  std::filesystem::path file;     // --config FILE; empty: not given
  bool help = false;              // --help, -h
  bool print_config = false;      // --print-config
  std::vector<Option> options{};  // for Sources::options, in the order given
  std::vector<std::string> rest;  // words that are not options, and all after "--"
};

// Takes `--KEY VALUE` and `--KEY=VALUE` for every key of the schema, with '-' or '_' between words, and --config,
// --print-config, --help. A bool needs no value: `--flag`, `--no-flag`, `--flag=false`. Lists are written with commas:
// `--device-ids 0,2`. If an option is given twice, the last value counts. kInvalidArgument: an unknown option, with the
// nearest known one, or a missing value.
Result<CommandLine> parse_command_line(const Schema& schema, int argc, const char* const* argv);

// Everything that the main function of a training program needs: parses the command line, handles --help and
// --print-config (both print to stdout), and reads all layers. True: go on. False: the text was printed, end with 0. An
// error: print it and end with 2. A word that is not an option is an error, such as `false` in `--flag false`, or a
// file without --config. A program that takes words calls parse_command_line and Schema::read.
Result<bool> configure(Schema& schema, int argc, const char* const* argv);

}  // namespace lockstep::config
