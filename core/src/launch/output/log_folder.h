// Log files of workers: log_dir/run_id/attempt_N/RANK/{stdout,stderr}.log, the same paths as torchrun's.
#pragma once

#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Opens a log file to append to it, and creates it if needed. The error names the path and the system's reason.
Result<Fd> open_log_file(const std::string& path);

// The folder of a run. A run id is any text, and another node may have chosen it: what is no letter, digit, dash,
// underscore or dot becomes an underscore, and so does a dot in front.
std::string log_folder_of(const std::string& log_dir, const std::string& run_id);

// The path of one stream's file. Creates its folder.
Result<std::string> make_log_path(const std::string& log_dir, const std::string& run_id, int attempt, int rank,
                                  const char* stream);

// $TMPDIR, or /tmp if that is not set.
std::string temporary_folder();

// A new folder in `parent`.
Result<std::string> make_temporary_log_dir(const std::string& parent);

// The last `bytes` of a file; empty if it cannot be read.
std::string read_end_of_file(const std::string& path, std::size_t bytes);

}  // namespace lockstep::launch
