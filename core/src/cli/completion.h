// `lockstep completion bash|zsh|man`: what shells and man know of the commands, from their own definitions.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): as the library spells it
class App;
}

namespace lockstep::cli {

// Scripts that complete commands, options, their values and the names of running jobs. The options of commands that are
// programs of their own are read from their --help when they are completed.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);

// The page lockstep(1).
std::string man_page(const CLI::App& app, const std::string& version);

void add_completion_command(CLI::App& app, const std::string& version, int& exit_code);

}  // namespace lockstep::cli
