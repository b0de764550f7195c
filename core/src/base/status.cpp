#include "lockstep/base/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace lockstep {
namespace {

// What to do, for errors whose text alone is misleading.
std::string remedy(int error_number) {
  rlimit limit{};
  if (error_number == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return " (this process may have " + std::to_string(limit.rlim_cur) + " descriptors; raise the limit: ulimit -n)";
  }
  if (error_number == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return " (files of this process may have " + std::to_string(limit.rlim_cur) + " bytes; raise the limit: ulimit -f)";
  }
  return {};
}

}  // namespace

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk: return "ok";
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kPeerFailed: return "peer failed";
    case ErrorCode::kAborted: return "aborted";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kPermission: return "permission denied";
    case ErrorCode::kCorrupt: return "corrupt data";
    case ErrorCode::kIo: return "input/output error";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kInternal: return "internal error";
  }
  return "unknown";
}

Status::Status(ErrorCode code, std::string message) {
  if (code != ErrorCode::kOk) error_ = std::make_shared<const Error>(Error{code, std::move(message)});
}

Status Status::from_errno(std::string_view what, int error_number) {
  ErrorCode code = ErrorCode::kIo;
  if (error_number == ENOENT || error_number == ENOTDIR) code = ErrorCode::kNotFound;
  if (error_number == EACCES || error_number == EPERM || error_number == EROFS) code = ErrorCode::kPermission;
  return {code, std::string(what) + ": " + std::generic_category().message(error_number) + remedy(error_number)};
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return ok() ? kEmpty : error_->message;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return *this;
  return {error_->code, std::string(context) + ": " + error_->message};
}

}  // namespace lockstep
