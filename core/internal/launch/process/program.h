// Turns the user's arguments, or this program itself, into a command line that can be executed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::launch {

enum class ProgramKind {
  kByName,        // python3 -u for a name that ends in .py; any other is executed
  kExecutable,    // executed, with any name (--no-python)
  kPythonModule,  // python3 -u -m NAME
};

// Whether command_line() runs the program with `python3 -u`.
bool runs_in_python(ProgramKind kind, const std::string& program);

// The command line before the search in PATH. `python` is the interpreter; nullptr: python3.
std::vector<std::string> command_line(ProgramKind kind, const std::string& program,
                                      const std::vector<std::string>& arguments, const char* python);

// The file that `name` means: `name` itself if it has a '/', else the first executable in `search_path` (like PATH),
// else this program itself if that is its name. kNotFound and kPermission say what was searched and what to do.
Result<std::string> find_executable(const std::string& name, std::string_view search_path);

// The file of the program that runs.
Result<std::string> own_program();

}  // namespace lockstep::launch
