// A store in one file, for ranks that share a file system: no port, no server process.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/fork.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

class FileLog;

// The file holds a log of checksummed records, written under an open-file-description lock. Thread-safe; waits look at
// the file every few milliseconds.
//
// Lifetime of the contents: they live while at least one FileStore has the file open. The last one to close it removes
// it, and a file that nobody has open (its processes were killed) is left over from an earlier run: the next to open it
// starts it anew. Locks end with their process, so no time-out or clean-up by hand is involved.
//
// A value is stored whole or not at all: after an error of the system (a full disk) the store is as it was before, and
// works again once there is room; a process that is killed while it writes leaves nothing behind.
//
// Whoever can write the file can lead ranks astray, so it belongs to this user alone: kPermission when another user
// owns it or may write to it (of a file server that gives all files to one number, the folder must be closed to
// others). A symbolic link is not followed. Others may not read it either.
//
// Errors: kCorrupt, with path and offset, for a file that is no Lockstep store (it is not touched) or was damaged from
// outside; kIo and kPermission from the system; kTimeout when another process keeps the file locked for a minute. The
// file system must support fcntl locks (NFS: version 4, or 3 with lockd). The log only grows: it suits rendezvous and
// counters, not bulk data.
class FileStore final : public Store {
 public:
  static Result<std::shared_ptr<FileStore>> open(std::string path);
  ~FileStore() override;

  Status set(std::string_view key, std::string_view value) override;
  Status set_by(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<Bytes> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override;
  Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  Status append(std::string_view key, std::string_view value) override;
  Status wait(std::span<const std::string> keys, Deadline deadline) override;
  Result<bool> check(std::span<const std::string> keys) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;

 private:
  using OwnedLog = std::unique_ptr<FileLog, LeakInForks>;
  explicit FileStore(OwnedLog log);
  OwnedLog log_;
};

}  // namespace lockstep::comm
