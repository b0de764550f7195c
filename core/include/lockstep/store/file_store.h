// A store in one file, for ranks that share a file system: no port, no server process.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/fork.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

class FileLog;

// The file holds a log of checksummed records, written under an open-file-description lock. Thread-safe; a wait looks
// at the file every few milliseconds.
//
// The contents live while at least one FileStore has the file open. The last one to close it removes the file. A file
// that nobody has open is left over from an earlier run whose processes were killed: the next store to open it empties
// it. Locks end with their process, so this needs no timeout and no clean-up by hand.
//
// A value is stored whole or not at all. After an error of the system (a full disk) the store is as it was before, and
// works again once there is room. A process that is killed while it writes leaves nothing behind.
//
// A process that can write the file could mislead ranks, so the file belongs to this user alone: kPermission when
// another user owns it or may write to it. Where a file server shows all files under one user's number, the folder must
// be closed to others. A symbolic link is not followed. Other users may not read the file either.
//
// Errors: kCorrupt, with path and offset, for a file that is not a Lockstep store (it stays as it is) or was damaged by
// another program; kIo and kPermission from the system; kTimeout when another process keeps the file locked for a
// minute. The file system must support fcntl locks (NFS: version 4, or 3 with lockd). The log only grows: it suits
// rendezvous and counters, not bulk data.
class FileStore final : public Store {
 public:
  static Result<std::shared_ptr<FileStore>> open(std::string path);
  ~FileStore() override;

 private:
  using OwnedLog = std::unique_ptr<FileLog, LeakInForks>;
  explicit FileStore(OwnedLog log);
  Result<StoreAnswer> answer(StoreCall call) override;
  Result<StoreAnswer> wait_and_answer(const StoreCall& call);

  OwnedLog log_;
};

}  // namespace lockstep::comm
