// Errors as values. Layers that do not use LibTorch return Status or Result<T> (transforms alone throws); layers
// that use it throw.
//
// A successful Status is one null pointer, so returning it costs nothing. A layer that passes an error on may add what
// it knows with `with_context`: rank, peer, operation, path, line.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

// What a caller may do about an error. The message says what happened; docs/errors.md says what state remains.
enum class ErrorCode {
  kOk = 0,
  kInvalidArgument,  // the call itself is wrong: fix the arguments
  kMismatch,         // ranks disagree about an operation, a shape, a world size
  kTimeout,          // the deadline passed; the message names who was missing
  kPeerFailed,       // another rank died or left
  kAborted,          // this group was aborted earlier; the message repeats the first error
  kUnavailable,      // a service (store, host, port) cannot be reached
  kNotFound,         // a file or key that should exist does not
  kPermission,       // the system or the other side refused: wrong key, no access
  kCorrupt,          // bytes that are not what they claim to be
  kIo,               // the system failed an operation; the message carries errno's text
  kUnsupported,      // correct, but not offered here
  kInternal,         // a bug in Lockstep
};

std::string_view to_string(ErrorCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // success
  Status(ErrorCode code, std::string message);

  // An error from errno (kNotFound, kPermission or kIo): "what: strerror(errno)". When the limit of open descriptors is
  // the reason, the message names that limit.
  static Status from_errno(std::string_view what, int error_number);

  bool ok() const { return error_ == nullptr; }
  ErrorCode code() const { return ok() ? ErrorCode::kOk : error_->code; }
  // Empty on success.
  const std::string& message() const;

  // The same error with "context: " in front of its message; success stays success.
  Status with_context(std::string_view context) const;

 private:
  struct Error {
    ErrorCode code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

// Either a value or the error that prevented it.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = Status(ErrorCode::kInternal, "a Result was made from a successful Status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // The value. Without one the program aborts, so ask ok() first.
  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  T& operator*() { return checked(); }

 private:
  T& checked() {
    if (!value_) std::abort();
    return *value_;
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace lockstep

// Returns an error to the caller.
#define LOCKSTEP_RETURN_IF_ERROR(expression)                                      \
  do {                                                                            \
    if (::lockstep::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define LOCKSTEP_CONCAT_INNER(a, b) a##b
#define LOCKSTEP_CONCAT(a, b) LOCKSTEP_CONCAT_INNER(a, b)

// `LOCKSTEP_ASSIGN_OR_RETURN(auto fd, open_file(path));`
#define LOCKSTEP_ASSIGN_OR_RETURN(declaration, expression) \
  LOCKSTEP_ASSIGN_OR_RETURN_IMPL(LOCKSTEP_CONCAT(result_, __LINE__), declaration, expression)
#define LOCKSTEP_ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                           \
  if (!result.ok()) return result.status();                             \
  declaration = std::move(result).value()
