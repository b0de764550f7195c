// The user's own key, for jobs over several machines that nobody has given a key: a file in the home directory, which
// clusters share between their machines.
#pragma once

#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// $XDG_STATE_HOME/lockstep/key, else $HOME/.local/state/lockstep/key; empty when neither is set.
std::string user_key_path(const Environment& environment);

// The key in that file, which is made, with random bytes and for this user alone, when it is not there. Several
// machines may do so at once.
Result<std::string> user_key(const Environment& environment);

}  // namespace lockstep::comm
