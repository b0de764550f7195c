// Log files of workers: where they are (log_dir/run_id/attempt_N/RANK/{stdout,stderr}.log, the same paths as
// torchrun's), and how they are written.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/output/background_writer.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::launch {

// Log files of workers: log_dir/run_id/attempt_N/RANK/{stdout,stderr}.log, the same paths as torchrun's.

// Opens a log file to append to it, and creates it if needed. In a file with text a line says what begins. The error
// names the path and the system's reason.
Result<Fd> open_log_file(const std::string& path, std::string_view what_begins = "another run");

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

// The last `bytes` of a file, and nothing before `begin`; empty if it cannot be read.
std::string read_end_of_file(const std::string& path, std::size_t bytes, std::uint64_t begin = 0);

class LogFile;

// LogFiles: every call on the workers' log files (open, write, close, read), made in one thread. A file server that
// does not answer keeps that thread, and the launcher goes on. One thread is enough: the files lie in one folder, and
// mostly stand still together.

// For one thread, the launcher's.
class LogFiles {
 public:
  // `folder` is for messages. The files stand still when nothing has moved for `patience`. A warning says so once.
  static Result<std::unique_ptr<LogFiles>> start(std::string folder, std::chrono::nanoseconds patience);
  // Drops what is not written. Waits for up to 1 s.
  ~LogFiles();
  LogFiles(const LogFiles&) = delete;
  LogFiles& operator=(const LogFiles&) = delete;

  std::chrono::nanoseconds patience() const { return patience_; }

  // Takes over an open file. `path` is for messages.
  std::unique_ptr<LogFile> add(Fd file, std::string path);
  void close(Fd file);

  // Runs `function` in the thread, after everything that was asked before, and returns its result. Gives up with
  // kAborted when `signals_fd` becomes readable, and with kTimeout at the deadline; then the function may still run.
  template <typename T>
  Result<T> call(std::function<Result<T>()> function, int signals_fd, Deadline deadline) {
    auto task = std::make_shared<std::packaged_task<Result<T>()>>(std::move(function));
    std::future<Result<T>> answer = task->get_future();
    post([task] { (*task)(); });
    LOCKSTEP_RETURN_IF_ERROR(wait_until_idle(signals_fd, deadline));
    return answer.get();
  }

  // Readable when a full file has room again.
  void add_to(std::vector<pollfd>& polled) const;
  // Handles that event. Warns when nothing moves.
  void serve();
  // When serve() may have to warn.
  Deadline next_due() const;

  // To call when all files have been released. Blocks until they are written and closed. Gives up at a signal, at the
  // deadline, and when the files stand still. A warning says what is not written.
  void finish(int signals_fd, Deadline deadline);

 private:
  friend class LogFile;
  struct State;
  LogFiles(std::shared_ptr<State> state, OutputThread thread, std::string folder, std::chrono::nanoseconds patience);
  void post(std::function<void()> task);
  Status wait_until_idle(int signals_fd, Deadline deadline);
  Deadline stands_still_at() const;
  std::size_t unwritten() const;

  const std::shared_ptr<State> state_;  // shared with the thread and the files
  const OutputThread thread_;
  const std::string folder_;
  const std::chrono::nanoseconds patience_;
  bool warned_ = false;
};

// A log file that is written in the background. Its destructor releases it: it is closed when all is written.
class LogFile {
 public:
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Too much is waiting: callers should stop. Those that cannot may go on. Beyond a second limit lines are dropped, and
  // a line says how many are missing.
  bool full() const;
  void append(std::string_view bytes);

 private:
  friend class LogFiles;
  struct Entry;
  LogFile(std::shared_ptr<LogFiles::State> state, std::shared_ptr<Entry> entry)
      : state_(std::move(state)), entry_(std::move(entry)) {}

  const std::shared_ptr<LogFiles::State> state_;
  const std::shared_ptr<Entry> entry_;
};

}  // namespace lockstep::launch
