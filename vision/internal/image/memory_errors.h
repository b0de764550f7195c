// Memory that the system refuses, as an error value. A picture decides how much is wanted, so this is no bug.
#pragma once

#include <new>
#include <string_view>

#include "base/printable.h"
#include "lockstep/base/status.h"

namespace lockstep::data {

// Calls `work`, which returns a Status or a Result. kIo when memory is refused; its message begins with the picture's
// `name`.
template <typename Work>
auto or_out_of_memory(std::string_view name, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::kIo, printable(name) + ": not enough memory for a picture of this size");
  }
}

}  // namespace lockstep::data
