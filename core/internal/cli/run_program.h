// The program `lockstep`, as far as it runs jobs and looks after them.
#pragma once

#include <functional>
#include <string>

#include "cli/run_options.h"
#include "cli/site_options.h"
#include "lockstep/base/status.h"

namespace lockstep::cli {

// Reads the section `launch` of the file `site.config` into the options of `run` that neither the command line nor a
// variable has given, and its key `program` into run.program when that is empty. With --print-config the text of all
// values comes back, else "".
using ApplyConfig = std::function<Result<std::string>(CLI::App& command, SiteArguments& site, RunArguments& run)>;

// `lockstep` with these arguments; returns the exit code. `apply_config` is called for --config and --print-config.
int run_program(int argc, char** argv, const ApplyConfig& apply_config);

// Prints the error of a command; returns its exit code.
int fail(const Status& status);

}  // namespace lockstep::cli
