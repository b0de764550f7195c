// One-line messages for people, on stderr: "[lockstep rank 1 host] warning: ...".
//
// Level from LOCKSTEP_LOG_LEVEL (debug, info, warning, error, off; default warning). Thread-safe; each message is
// written as a whole. Libraries log what a user should know and cannot see otherwise; errors are returned as Status.
#pragma once

#include <functional>
#include <string_view>

namespace lockstep::log {

void debug(std::string_view message);
void info(std::string_view message);
void warning(std::string_view message);
void error(std::string_view message);

// Shown in front of every later message of this process; -1 removes it.
void set_rank(int rank);

// Receives the lines (each with its newline) instead of stderr: for a program that must not block on stderr. Any thread
// may call it, one at a time. Empty: stderr again.
using Output = std::function<void(std::string_view line)>;
void set_output(Output output);

}  // namespace lockstep::log
