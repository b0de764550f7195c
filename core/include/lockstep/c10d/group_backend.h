// GroupBackend: the base of this library's own backends (lockstep, mpi). It adds two things to c10d: each message can
// have its own timeout, and a message can be checked before anything starts. The free functions send, recv and their
// like (lockstep/c10d/collectives.h) use both.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/base/status.h"
#include "lockstep/c10d/backend_capabilities.h"
#include "lockstep/store/store.h"

namespace lockstep {

class GroupBackend : public c10d::Backend, public BackendCapabilities {
 public:
  struct Message {
    at::Tensor tensor;
    int peer = 0;                           // a group rank; a receive also takes kAnySource (-1)
    int tag = 0;                            // at least 0
    std::chrono::milliseconds timeout{-1};  // 0 or less: the group's timeout
  };

  c10::intrusive_ptr<Options> getBackendOptions() final;
  void setTimeout(std::chrono::milliseconds timeout) final { timeout_ = timeout; }

  // Messages between two ranks, always asynchronous, as in c10d. A tag is at least 0.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) final;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) final;
  // Work::sourceRank() returns the sender's rank.
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) final;

  // Throw ArgumentError for a message that send_async and send_blocking, or receive_async and receive_blocking, would
  // refuse.
  void check_send(const Message& message) const;
  void check_receive(const Message& message) const;
  // The message's timeout counts from this call. It ends Work::wait() and the Work's future.
  virtual c10::intrusive_ptr<c10d::Work> send_async(const Message& message) = 0;
  // Work::sourceRank() returns the sender's rank.
  virtual c10::intrusive_ptr<c10d::Work> receive_async(const Message& message) = 0;
  // Return when the message has been sent or received. receive_blocking returns the sender's rank.
  virtual void send_blocking(const Message& message);
  virtual int receive_blocking(const Message& message);

  // Makes a group of the members `ranks`, which are ranks of this group. The caller must be one of them. The new group
  // uses this group's store, not `store`. Collective over `ranks`.
  bool supportsSplitting() const final { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) final;

  // Makes a second group of the same ranks. This library's own collectives run in the twin, so that they cannot be
  // mistaken for the program's. When one of the two groups breaks, the other breaks too. Collective over the group.
  // If the group is broken, throws the error that broke it. Members that already wait for one another get that error
  // too where the backend can see it (ProcessGroupLockstep can), else a timeout. Errors show `name`.
  c10::intrusive_ptr<c10d::Backend> make_twin(const std::string& name);

  // A view of `store` with which `ranks` of this group make another group: a wait for a key fails with kPeerFailed soon
  // after one of `ranks` has died or left. A backend that cannot see a death returns `store` itself.
  virtual std::shared_ptr<comm::Store> watched(std::shared_ptr<comm::Store> store, std::vector<int> /*ranks*/) const {
    return store;
  }

  // The error that broke the group; ok while the group works.
  virtual Status health() const = 0;
  // Ok until reconfigure() has replaced this group by another one; then an error that says so.
  virtual Status replaced() const { return {}; }
  c10d::ErrorType getError() final;

 protected:
  // What a rank knows about a group that it belongs to.
  struct Membership {
    std::shared_ptr<comm::Store> store;  // holds the keys of this group alone
    std::string name;                    // errors show it
    int rank = 0;
    int size = 1;
    std::vector<int> global_ranks;      // of each group rank; empty: group ranks are global ranks
    std::chrono::milliseconds timeout;  // of joining, and of each operation without a timeout of its own
  };

  explicit GroupBackend(Membership membership);

  const Membership& membership() const { return *membership_.load(std::memory_order_acquire); }
  int global_rank(int rank) const {
    const std::vector<int>& global_ranks = membership().global_ranks;
    return global_ranks.empty() ? rank : global_ranks[rank];
  }
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // Replaces the membership. The earlier one stays readable for calls under way.
  void renew(Membership membership) LOCKSTEP_EXCLUDES(mutex_);
#endif
  std::shared_ptr<comm::Store> store() const LOCKSTEP_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return store_;
  }
  // The twins that still live.
  std::vector<c10::intrusive_ptr<c10d::Backend>> twins() const LOCKSTEP_EXCLUDES(mutex_);
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const {
    return timeout <= std::chrono::milliseconds::zero() ? timeout_.load() : timeout;
  }

  // How errors name this rank: "rank 1, group 'world'".
  virtual const std::string& who() const = 0;
  // Throws ArgumentError for a message that this kind of backend refuses and others accept. `operation` is "send" or
  // "recv".
  virtual void check_limits(const char* operation, const Message& message) const;
  // Makes the backend of a part of this group. Collective over the part's members.
  virtual c10::intrusive_ptr<c10d::Backend> create_part(Membership part) const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> create_twin(Membership twin) const;

 private:
  mutable Mutex mutex_;
  std::deque<Membership> memberships_ LOCKSTEP_GUARDED_BY(mutex_);  // the last one counts; their `store` is null
  std::atomic<const Membership*> membership_;
  std::shared_ptr<comm::Store> store_ LOCKSTEP_GUARDED_BY(mutex_);  // of the last membership
  std::atomic<std::chrono::milliseconds> timeout_;
  std::map<std::string, int> splits_ LOCKSTEP_GUARDED_BY(mutex_);  // how often each list of members was split off
  int twins_made_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<c10::weak_intrusive_ptr<c10d::Backend>> twins_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
