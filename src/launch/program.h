// From what the user typed to a command line that can be executed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::launch {

enum class ProgramKind {
  kByName,        // a name that ends in .py: python3 -u; any other: executed
  kExecutable,    // executed, whatever its name (--no-python)
  kPythonModule,  // python3 -u -m NAME
};

// The command line, not yet searched for in PATH. Python is $PYTHON_EXEC where set, else python3.
std::vector<std::string> command_line(ProgramKind kind, const std::string& program,
                                      const std::vector<std::string>& arguments, const char* python);

// The file that `name` stands for: itself when it has a '/', else the first executable in `search_path` (as PATH).
// kNotFound and kPermission say what was looked for and what to do.
Result<std::string> find_executable(const std::string& name, std::string_view search_path);

}  // namespace lockstep::launch
