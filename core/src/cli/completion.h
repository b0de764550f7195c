// `lockstep completion bash|zsh|man`: what shells and man know of the commands, from their own definitions.
#pragma once

#include <string>

#include "options/command.h"

namespace lockstep::cli {

// The scripts complete commands, options, their values and the names of running jobs. The options of commands that are
// programs of their own are read from their --help when they are completed. The page for man is lockstep(1).
void add_completion_command(options::Command& app, const std::string& version);

}  // namespace lockstep::cli
