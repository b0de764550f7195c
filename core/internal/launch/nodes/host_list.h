// The machines of `lockstep run --hosts`, and what is said to them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::launch {

struct Host {
  std::string name;  // as ssh takes it: "b", "user@b", "fd00::2"
  int workers = 0;   // 0: as --nproc-per-node says
};

// "a,b:4,user@c,fd00::2,[fd00::3]:4": IPv6 addresses are in brackets where a number follows, else with or without.
// kInvalidArgument: empty names, numbers below 1, brackets around anything else, a name twice.
Result<std::vector<Host>> parse_hosts(std::string_view text);

// Whether the name is that of this machine: localhost, the host name or an address of it. With "user@" it is not, since
// that user may be another one.
bool is_this_machine(std::string_view name);

// The words of --ssh, as a shell splits them: quotes and backslashes keep spaces in a word.
Result<std::vector<std::string>> split_words(std::string_view text);

// The words as one command line for a POSIX shell.
std::string quote_for_shell(const std::vector<std::string>& words);

}  // namespace lockstep::launch
