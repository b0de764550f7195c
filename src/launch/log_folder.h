// Log files of workers: log_dir/run_id/attempt_N/RANK/{stdout,stderr}.log, as torchrun lays them out.
#pragma once

#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Opens (creates, appends to) a log file; the error names the path and what the system said.
Result<Fd> open_log_file(const std::string& path);

// The path of one stream's file, whose folder is created.
Result<std::string> make_log_path(const std::string& log_dir, const std::string& run_id, int attempt, int rank,
                                  const char* stream);

// A new folder in $TMPDIR (else /tmp).
Result<std::string> make_temporary_log_dir();

// The last `bytes` of a file; empty when it cannot be read.
std::string read_end_of_file(const std::string& path, std::size_t bytes);

}  // namespace lockstep::launch
