// torchelastic's error files: what a worker (Python's @record) writes of its exception, and what a launcher writes of
// the first failure of its job.
#pragma once

#include <string>

#include "launch/job/failure_report.h"
#include "lockstep/base/fd.h"

namespace lockstep::launch {

// The files of a job's workers, in a folder of their own. Workers find their files by the path, as torchrun's workers
// do, also where another process has started the worker, in namespaces of its own or as another user.
class ErrorFiles {
 public:
  ErrorFiles() = default;
  // Removes the folder. If this process is killed, its supervisors do (ProcessTree::begin).
  ~ErrorFiles();
  ErrorFiles(const ErrorFiles&) = delete;
  ErrorFiles& operator=(const ErrorFiles&) = delete;

  // A new file: the value of TORCHELASTIC_ERROR_FILE. The first call makes the folder, in /dev/shm or else in $TMPDIR,
  // whose disk may block this call, the destructor and read_error_file. Where neither can be written or has 1 MiB free,
  // the value is empty, and workers write no error files.
  std::string make_file();
  // Empty before the first file.
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  Fd lock_;
};

// The exception's text and its call stack go into the failure. Nothing happens if the worker wrote nothing, or
// something else.
void read_error_file(const std::string& path, Failure& failure);

// In the same format. `reason`: for a job that no worker has ended; then `failure` is nullptr.
std::string error_report(const Failure* failure, const std::string& reason, int exit_code);

}  // namespace lockstep::launch
