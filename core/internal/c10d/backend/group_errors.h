// What every backend says of a group that cannot be used, or that this rank breaks; the text of any error.
#pragma once

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep {

// `who` as from describe_member.
inline Status fork_of(const std::string& who) {
  return {ErrorCode::kUnsupported, "this process is a fork of " + who};
}

inline Status left_group() {
  return {ErrorCode::kAborted, "this rank has left the group (destroy_process_group or shutdown)"};
}

// The reason of a group that ProcessGroup::abort or Work::abort has broken.
inline std::string aborted_by(const std::string& who) {
  return fmt::format("{} aborted it", who);
}
inline std::string aborted_by(const std::string& who, const char* operation) {
  return fmt::format("{} aborted its {}", who, operation);
}

// The text of an error. LibTorch's own errors have a stack trace too, which is left out.
inline std::string plain_text(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
}

}  // namespace lockstep
