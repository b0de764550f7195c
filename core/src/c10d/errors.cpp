#include "lockstep/c10d/errors.h"

#include <fmt/format.h>

namespace lockstep {

ErrorCode error_code(const std::exception& error) noexcept {
  const auto* coded = dynamic_cast<const ErrorWithCode*>(&error);
  return coded == nullptr ? ErrorCode::kInternal : coded->code();
}

void throw_status(const Status& status, std::string_view context) {
  const std::string message = context.empty() ? status.message() : fmt::format("{}: {}", context, status.message());
  switch (status.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported: throw ArgumentError(status.code(), message);
    case ErrorCode::kUnavailable: throw NetworkError(status.code(), message);
    default: throw BackendError(status.code(), message);
  }
}

}  // namespace lockstep
