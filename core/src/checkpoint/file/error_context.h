// Errors of this layer: of damaged files, and those that LibTorch and the system have thrown.
#pragma once

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/errors.h"

namespace lockstep::checkpoint {

// Throws the error of a file whose content cannot be what Lockstep or PyTorch has written.
[[noreturn]] inline void damaged(const std::string& what) {
  throw CheckpointError(ErrorCode::kCorrupt, "damaged: " + what);
}

// Returns what `run` returns. Puts `where` in front of its errors. Other exceptions (no memory, a failed device) become
// CheckpointErrors with kIo.
template <typename Run>
auto in_context(std::string_view where, Run&& run) {
  try {
    return run();
  } catch (const CheckpointError& error) {
    throw CheckpointError(error.code(), fmt::format("{}: {}", where, error.what()));
  } catch (const c10::Error& error) {
    throw CheckpointError(ErrorCode::kIo, fmt::format("{}: {}", where, error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw CheckpointError(ErrorCode::kIo, fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace lockstep::checkpoint
