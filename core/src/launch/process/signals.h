// Names of signals, for messages.
#pragma once

#include <string>

namespace lockstep::launch {

struct Exit;

// "SIGKILL"; "signal 64" for one without a name.
std::string signal_name(int number);

// "exit code 3", "signal SIGSEGV (11)", "signal SIGSEGV (11), core dumped".
std::string describe_exit(const Exit& exit);

}  // namespace lockstep::launch
