// The exception of the checkpoint layer. The text names the file. The codes:
//   - kNotFound, kInvalidArgument
//   - kIo, kPermission: the system refused; the text has errno's. kIo also when LibTorch fails, for example without
//     memory
//   - kCorrupt: the file is damaged, in another format, or holds impossible values
//   - kMismatch: a good file of another model or optimizer
//   - kUnsupported: a newer format; an optimizer or a tensor that cannot be saved
//   - kUnavailable: another process writes to the folder, or there is no thread for a save
#pragma once

#include <stdexcept>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

class CheckpointError : public std::runtime_error {
 public:
  CheckpointError(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace lockstep::checkpoint
