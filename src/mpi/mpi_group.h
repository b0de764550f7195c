// What an MPI group and the works it has handed out share: the communicator, the first error, the works under way.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <mpi.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/fork.h"
#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"

namespace lockstep {

class MpiWork;

class MpiGroup : public std::enable_shared_from_this<MpiGroup> {
 public:
  MpiGroup(MPI_Comm communicator, std::string who, int world_size);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  const std::string& who() const { return who_; }
  int world_size() const { return world_size_; }
  MPI_Comm communicator() const { return communicator_; }  // not after leave()
  std::uint64_t next_sequence() { return ++sequence_; }
  std::uint64_t sequence() const { return sequence_; }

  // The error that broke the group; ok while it works.
  Status error() const LOCKSTEP_EXCLUDES(mutex_);
  // What to tell later operations: that the group is broken, or that this rank has left it; else ok.
  Status health() const LOCKSTEP_EXCLUDES(mutex_);
  // Later operations on this rank fail with this error. MPI cannot tell the other ranks.
  void break_with(const Status& error) LOCKSTEP_EXCLUDES(mutex_);

  // Works whose end nobody may ever ask for are moved on, and their memory kept, until they are done.
  void add(c10::intrusive_ptr<MpiWork> work) LOCKSTEP_EXCLUDES(mutex_);
  // Moves all works on and lets go of those that are done.
  void poll() LOCKSTEP_EXCLUDES(mutex_);
  // From now on a thread polls, so that futures become ready by themselves.
  void start_polling() LOCKSTEP_EXCLUDES(mutex_);

  // Ends what is unfinished with an error and frees the communicator. Does not wait for other ranks. The polling thread
  // is waited for, unless it is the caller (in the callback of a future): then it ends by itself afterwards.
  void leave() LOCKSTEP_EXCLUDES(mutex_);

 private:
  void keep_polling() LOCKSTEP_EXCLUDES(mutex_);

  const Origin origin_;
  const std::string who_;
  const int world_size_;
  MPI_Comm communicator_;
  std::atomic<std::uint64_t> sequence_{0};
  mutable Mutex mutex_;
  CondVar changed_;
  Status error_ LOCKSTEP_GUARDED_BY(mutex_);
  bool left_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<c10::intrusive_ptr<MpiWork>> works_ LOCKSTEP_GUARDED_BY(mutex_);
  std::thread poller_ LOCKSTEP_GUARDED_BY(mutex_);  // shares the ownership of this
};

}  // namespace lockstep
