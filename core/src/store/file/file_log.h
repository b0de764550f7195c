// The file behind a FileStore: a log of checksummed records, and the table that they make.
//
//   file     "LKSTEPF1", then records
//   record   u32 checksum of what follows, u32 kind, u32 key bytes, u32 value bytes, key, value
//
// A record is stored whole or not at all. When the disk is full, the writer cuts off its incomplete record. When a
// writer is killed, the next store that locks the file cuts it off; only the last record can be incomplete, because
// writers hold the lock. A last record that is shorter than it says is such a rest; any other mismatch is damage.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "store/file/file_lock.h"
#include "store/keys/key_value_table.h"

namespace lockstep::comm {

class FileLog {
 public:
  using RecordKind = KeyValueTable::Change;

  static Result<std::unique_ptr<FileLog, LeakInForks>> open(std::string path);
  ~FileLog();

  // How long a call may wait for the lock; a process that holds it for longer counts as stopped. A call with a deadline
  // of its own waits a little longer than that deadline. After one wait in vain the next ones are short.
  Deadline patience(Deadline deadline = Deadline::never()) const;

  using Look = std::function<void(const KeyValueTable&)>;
  using Write = KeyValueTable::Write;
  using Change = std::function<Status(const KeyValueTable&, const Write&)>;

  // Runs `look(table)` on the newest contents; returns the length of the file that they come from.
  Result<off_t> read(Deadline deadline, const Look& look) LOCKSTEP_EXCLUDES(mutex_);
  // Runs `change(table, write)` on the newest contents; `write` appends a record and applies it.
  Status update(Deadline deadline, const Change& change) LOCKSTEP_EXCLUDES(mutex_);

  // Whether the file has grown since a read() returned `seen`. The caller passes its own `seen`, because other threads
  // may have read or written through this object since.
  bool has_news(off_t seen) const;

  const std::string& path() const { return path_; }

 private:
  FileLog(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  // Runs `body` with the file locked; kTimeout when another process keeps it locked until the deadline;
  // kUnsupported in a fork, as the locks are the parent's.
  Status locked(LockMode mode, Deadline deadline, const std::function<Status()>& body) LOCKSTEP_EXCLUDES(mutex_);
  // The lock is held in each of the following.
  // Joins the others that have the file open, or empties the file when nobody has. kAborted: it was removed meanwhile.
  Status join() LOCKSTEP_REQUIRES(mutex_);
  Status make_empty() LOCKSTEP_REQUIRES(mutex_);
  Status leave() LOCKSTEP_REQUIRES(mutex_);
  // Applies new records; true: the rest of a killed writer's record follows them.
  Result<bool> catch_up() LOCKSTEP_REQUIRES(mutex_);
  // Applies the first record of `rest` and returns its bytes; 0: it is incomplete.
  Result<std::size_t> apply_first(std::string_view rest) LOCKSTEP_REQUIRES(mutex_);
  Status append(RecordKind kind, std::string_view key, std::string_view value) LOCKSTEP_REQUIRES(mutex_);
  Status cut_off_rest() LOCKSTEP_REQUIRES(mutex_);
  Status corrupt(std::string_view what) const LOCKSTEP_REQUIRES(mutex_);

  const Origin origin_;
  const std::string path_;
  Fd fd_;
  mutable Mutex mutex_;
  KeyValueTable table_ LOCKSTEP_GUARDED_BY(mutex_);
  off_t end_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // of the records that have been read; 0: not joined
  std::atomic<bool> stuck_{false};             // the last wait for the lock was in vain
};

}  // namespace lockstep::comm
