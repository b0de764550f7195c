#include "support/python/python.h"

#include <array>
#include <cstdio>
#include <stdexcept>

#include "support/scratch_folder.h"

namespace lockstep::test {

std::string run_python(const std::string& script, const std::vector<std::string>& arguments) {
  const ScratchFolder scratch;  // torch leaves caches in the folder for temporary files
  // The script must not see the variables of a launcher.
  std::string command = "env -u RANK -u WORLD_SIZE -u LOCAL_RANK -u MASTER_ADDR -u MASTER_PORT OMP_NUM_THREADS=1 ";
  command += "TMPDIR=" + scratch.path().native() + " ";
#ifdef LOCKSTEP_PYTHON_PACKAGE
  command += "PYTHONPATH=" LOCKSTEP_PYTHON_PACKAGE " ";
#endif
  command += LOCKSTEP_PYTHON " -S " LOCKSTEP_FORK_SERVER " run " LOCKSTEP_FORK_SERVER_SOCKET " ";
  command += LOCKSTEP_PARITY_SCRIPTS "/" + script;
  for (const std::string& argument : arguments) command += " " + argument;
  std::FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  std::string output;
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    output.append(buffer.data(), got);
  }
  if (::pclose(pipe) != 0) throw std::runtime_error(command + " failed, with this output: " + output);
  return output;
}

}  // namespace lockstep::test
