#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace lockstep::test {

// Returns the result of a system call that only root may make. Throws where the call has failed.
inline int needs_root(int result, const char* call) {
  if (result < 0) throw std::runtime_error(fmt::format("this test needs root: {}: {}", call, std::strerror(errno)));
  return result;
}

}  // namespace lockstep::test
