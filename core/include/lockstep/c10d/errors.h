// The exceptions of process groups and of DDP (data and checkpoint have their own). docs/errors.md says in what state
// each leaves the group.
//
// All derive from c10::Error: `catch (const c10::Error&)` (or std::exception) catches every one. Their text is one
// plain message without a stack trace. `error_code(e)` tells the kind of error:
//
//   try { lockstep::all_reduce(t); }
//   catch (const std::exception& e) {
//     if (lockstep::error_code(e) == lockstep::ErrorCode::kPeerFailed) save_checkpoint();
//     throw;
//   }
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep {

// A base of every exception below.
class ErrorWithCode {
 public:
  virtual ~ErrorWithCode() = default;
  ErrorCode code() const noexcept { return code_; }

 protected:
  explicit ErrorWithCode(ErrorCode code) : code_(code) {}

 private:
  ErrorCode code_;
};

// The call itself is wrong (kInvalidArgument, kUnsupported). Nothing has moved; the group stays usable.
class ArgumentError : public c10::ValueError, public ErrorWithCode {
 public:
  ArgumentError(ErrorCode code, const std::string& message) : c10::ValueError(message), ErrorWithCode(code) {}
};

// An operation of a group failed: ranks disagree (kMismatch), a rank died or left (kPeerFailed) or did not come in time
// (kTimeout), the group was aborted (kAborted), or the system failed. Python's torch.distributed raises it as
// DistBackendError.
class BackendError : public c10::DistBackendError, public ErrorWithCode {
 public:
  BackendError(ErrorCode code, const std::string& message) : c10::DistBackendError(message), ErrorWithCode(code) {}
};

// A store failed or did not answer in time. Python: DistStoreError.
class StoreError : public c10::DistStoreError, public ErrorWithCode {
 public:
  StoreError(ErrorCode code, const std::string& message) : c10::DistStoreError(message), ErrorWithCode(code) {}
};

// A host or port cannot be reached (kUnavailable). Python: DistNetworkError.
class NetworkError : public c10::DistNetworkError, public ErrorWithCode {
 public:
  NetworkError(ErrorCode code, const std::string& message) : c10::DistNetworkError(message), ErrorWithCode(code) {}
};

// The code of `error`; kInternal for exceptions of other libraries.
ErrorCode error_code(const std::exception& error) noexcept;

// Throws the exception that fits `status`, which must not be ok, with "context: " in front of its message.
[[noreturn]] void throw_status(const Status& status, std::string_view context = {});

}  // namespace lockstep
