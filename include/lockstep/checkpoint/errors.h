// The exception of the checkpoint layer. Codes: kNotFound; kIo and kPermission (the system refused: errno's text);
// kCorrupt (the file is damaged or in another format); kMismatch (a good file of another model or optimizer);
// kUnsupported (a newer format, an optimizer that cannot be saved); kUnavailable (no thread for a save);
// kInvalidArgument. The text names the file.
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
