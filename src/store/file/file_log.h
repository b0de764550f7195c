// The file behind a FileStore: a log of checksummed records, and the table that they make.
//
//   file     "LKSTEPF1", then records
//   record   u32 checksum of what follows, u32 kind, u32 key bytes, u32 value bytes, key, value
//
// A record is there whole or not at all. A writer that the system refuses room cuts off what it has written, and what a
// killed writer has left is cut off by the next who locks the file: it can only be the last record, as writers hold the
// lock. A last record that is shorter than it says is such a rest; everything else that does not fit is damage.
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
  enum class RecordKind : std::uint32_t { kSet = 1, kErase = 2, kAppend = 3 };

  static Result<std::unique_ptr<FileLog, LeakInForks>> open(std::string path);
  ~FileLog();

  // How long a call may wait for the lock: another process that holds it for longer counts as stopped. A call with a
  // deadline of its own gets a little more than that. Once one has waited in vain, little time is spent on the next.
  Deadline patience(Deadline deadline = Deadline::never()) const;

  using Look = std::function<void(const KeyValueTable&)>;
  using Write = std::function<Status(RecordKind, std::string_view key, std::string_view value)>;
  using Change = std::function<Status(const KeyValueTable&, const Write&)>;

  // Runs `look(table)` on the newest contents; answers how far into the file they reach.
  Result<off_t> read(Deadline deadline, const Look& look) LOCKSTEP_EXCLUDES(mutex_);
  // Runs `change(table, write)` on the newest contents; `write` appends a record and applies it.
  Status update(Deadline deadline, const Change& change) LOCKSTEP_EXCLUDES(mutex_);

  // Whether the file has grown since a read() answered `seen`. That is the caller's own: other threads may have read
  // on, or written, through this object since.
  bool has_news(off_t seen) const;

  const std::string& path() const { return path_; }

 private:
  FileLog(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  // Runs `body` with the file locked; kTimeout when another process keeps it locked until the deadline;
  // kUnsupported in a fork, as the locks are the parent's.
  Status locked(LockMode mode, Deadline deadline, const std::function<Status()>& body) LOCKSTEP_EXCLUDES(mutex_);
  // The lock is held in each of these. Joins the others that have the file open, or starts it anew when nobody has;
  // kAborted: it was removed meanwhile.
  Status join() LOCKSTEP_REQUIRES(mutex_);
  Status start_anew() LOCKSTEP_REQUIRES(mutex_);
  Status leave() LOCKSTEP_REQUIRES(mutex_);
  // Applies the records that are new; whether the rest of a killed writer's record follows them.
  Result<bool> catch_up() LOCKSTEP_REQUIRES(mutex_);
  // The bytes of the first record of `rest`, which is applied; 0: it is not there whole.
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
