// torchelastic's error files: what a worker (Python's @record) writes of its exception, and what a launcher writes of
// the first failure of its job.
#pragma once

#include <string>

#include "launch/failure_report.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// The file of one worker. It is in memory: it goes with this process, and no disk can delay it. The worker opens it by
// its path, the value of TORCHELASTIC_ERROR_FILE.
class ErrorFile {
 public:
  static Result<ErrorFile> make();
  std::string path() const;
  // The exception's text and its call stack go into the failure. Nothing happens if the worker wrote nothing, or
  // something else.
  void read_into(Failure& failure) const;

 private:
  explicit ErrorFile(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// In the same format. `reason`: for a job that no worker has ended; then `failure` is nullptr.
std::string error_report(const Failure* failure, const std::string& reason, int exit_code);

}  // namespace lockstep::launch
