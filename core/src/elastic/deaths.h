// Which errors tell of a death.
#pragma once

#include <exception>
#include <string>

#include "c10d/backend/group_errors.h"
#include "engine/core/failure.h"

namespace lockstep::elastic_detail {

// Of a rank, or of the store that it served. A rank that waits for one that has seen the death is told to form the
// world anew too.
inline bool tells_of_death(const std::exception& error) {
  const ErrorCode code = error_code(error);
  if (code == ErrorCode::kAborted) return plain_text(error).find(comm::kFormedAnew) != std::string::npos;
  return code == ErrorCode::kPeerFailed || code == ErrorCode::kUnavailable;
}

inline std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return plain_text(known);
  }
}

// Runs `what`. Returns the error if it tells of a death, and throws every other one.
template <typename What>
std::exception_ptr unless_a_rank_dies(What&& what) {
  try {
    what();
  } catch (const std::exception& error) {
    if (!tells_of_death(error)) throw;
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace lockstep::elastic_detail
