// The user's own key, for jobs over several machines without a job key: a file in the home directory, which the
// machines of a cluster share.
#pragma once

#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// $XDG_STATE_HOME/lockstep/key, else $HOME/.local/state/lockstep/key; empty when neither is set.
std::string user_key_path(const Environment& environment);

// The key in that file. If the file is missing, it is made with random bytes, readable by this user only. Several
// machines may do so at once.
Result<std::string> user_key(const Environment& environment);

}  // namespace lockstep::comm
