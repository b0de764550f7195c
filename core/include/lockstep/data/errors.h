// The exceptions of the data layer: for files that cannot be read or are damaged, wrong arguments, and samples that
// could not be made. The text says where (path and byte, or sample index), what was expected and what was found.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::data {

class DataError : public std::runtime_error {
 public:
  DataError(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// The value, or the error as an exception.
template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw DataError(result.status().code(), result.status().message());
  return std::move(result).value();
}

// A dataset threw while it made a sample. The dataset's own exception is nested (std::rethrow_if_nested).
class SampleError : public DataError {
 public:
  SampleError(std::int64_t index, const std::string& reason)
      : DataError(ErrorCode::kCorrupt, "sample " + std::to_string(index) + ": " + reason), index_(index) {}
  std::int64_t index() const noexcept { return index_; }

 private:
  std::int64_t index_;
};

// The dataset leaves this sample out (OnCorrupt::kSkip). A batch of several samples is made of the others; when none is
// left, a loader takes the next good sample, or with `exact` leaves out the batch. If the next 64 samples are left out
// too, the loader throws SampleError.
class SkippedSample : public SampleError {
 public:
  using SampleError::SampleError;
};

// The dataset makes no batch without these samples (OnCorrupt::kReplace). A loader makes the batch again, with the next
// good sample of the loader's own dataset in place of each. index() is the first of the indices, which are not empty.
class SamplesToReplace : public SkippedSample {
 public:
  SamplesToReplace(std::vector<std::int64_t> indices, const std::string& reason)
      : SkippedSample(indices.front(), reason), indices_(std::move(indices)) {}
  const std::vector<std::int64_t>& indices() const noexcept { return indices_; }

 private:
  std::vector<std::int64_t> indices_;
};

}  // namespace lockstep::data
