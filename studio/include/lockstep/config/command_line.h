// The command line of a program whose options are a config::Schema.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/config/schema.h"

namespace lockstep::config {

// Everything that the main function of a training program needs: parses the command line, handles --help and
// --print-config (both print to stdout), and reads all layers. True: go on. False: the text was printed, end with 0. An
// error: print it and end with 2. kInvalidArgument: an unknown option, with the nearest known one, a missing value, or
// what Schema::read finds.
//
// The options are `--KEY VALUE` and `--KEY=VALUE` for every key of the schema, with '-' or '_' between words, and
// --config, --print-config, --help. A bool needs no value: `--flag`, `--no-flag`, `--flag=false`. Lists are written
// with commas: `--device-ids 0,2`. If an option is given twice, the last value counts. Words that do not begin with
// '-', negative numbers, a single '-', and all words behind "--" go to `words`. Without `words` they are an error, such
// as `false` in `--flag false`, or a file without --config.
//
// `complete` is called when all values are read, before --print-config prints them. It gives values to fields whose
// default depends on other fields.
Result<bool> configure(Schema& schema, int argc, const char* const* argv, std::vector<std::string>* words = nullptr,
                       const std::function<void()>& complete = {});

}  // namespace lockstep::config
