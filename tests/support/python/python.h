// Runs the scripts in this folder with the Python of the torch wheel (LOCKSTEP_PYTHON).
#pragma once

#include <string>
#include <vector>

namespace lockstep::test {

// Runs `script` and returns its output. Throws with the output when it fails. Arguments are not quoted for the shell.
std::string run_python(const std::string& script, const std::vector<std::string>& arguments = {});

}  // namespace lockstep::test
