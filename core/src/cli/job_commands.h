// `lockstep ps`, `status` and `stop`: the running jobs of this user.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): as the library spells it
class App;
}

namespace lockstep::cli {

// Adds the three commands. One that is called stores its exit code: 0; 1 when there is no such job or it does not end;
// 2 for a name that fits several.
void add_job_commands(CLI::App& app, int& exit_code);

}  // namespace lockstep::cli
