// Runs the scripts beside this file with the wheel's own Python (LOCKSTEP_PYTHON).
#pragma once

#include <string>
#include <vector>

namespace lockstep::test {

// Runs `script` and answers what it printed. Throws with that text when it fails. Its arguments must need no quoting.
std::string run_python(const std::string& script, const std::vector<std::string>& arguments = {});

}  // namespace lockstep::test
