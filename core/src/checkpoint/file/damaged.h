// The error of a file whose content cannot be what Lockstep or PyTorch has written.
#pragma once

#include <string>

#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {

[[noreturn]] inline void damaged(const std::string& what) {
  throw CheckpointError(ErrorCode::kCorrupt, "damaged: " + what);
}

}  // namespace lockstep::checkpoint
