// Where the programs that need LibTorch find it. The launcher loads none of it.
#pragma once

#include <string>

#include "lockstep/base/status.h"

namespace lockstep::cli {

// Lets a program that this process becomes find LibTorch: in the folder that LOCKSTEP_TORCH_DIR names, of the wheel
// `torch`, if it is set; else where it was when Lockstep was built, or in LD_LIBRARY_PATH. `command` is for the
// message. Errors: kNotFound; kInvalidArgument when the folder has another release, which would crash.
Status find_torch_for(const std::string& command);

}  // namespace lockstep::cli
