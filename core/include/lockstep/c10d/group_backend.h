// GroupBackend: what this library's own backends (lockstep, mpi) have in common. Beyond c10d, each message has a
// timeout of its own and can be checked before anything starts; send, recv and the like (lockstep/c10d/collectives.h)
// use that.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
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
    int peer = 0;                           // a group rank; for receives also kAnySource, -1
    int tag = 0;                            // not negative
    std::chrono::milliseconds timeout{-1};  // not positive: the group's
  };

  c10::intrusive_ptr<Options> getBackendOptions() final;
  void setTimeout(std::chrono::milliseconds timeout) final { timeout_ = timeout; }

  // Point to point; always asynchronous, as in c10d. Tags are not negative.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) final;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) final;
  // Work::sourceRank tells the sender.
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) final;

  // Throw ArgumentError for what the calls below would refuse.
  void check_send(const Message& message) const;
  void check_receive(const Message& message) const;
  // The timeout counts from this call, for Work::wait() and the Work's future.
  virtual c10::intrusive_ptr<c10d::Work> send_async(const Message& message) = 0;
  // Work::sourceRank tells the sender.
  virtual c10::intrusive_ptr<c10d::Work> receive_async(const Message& message) = 0;
  virtual void send_blocking(const Message& message);
  // Returns the sender.
  virtual int receive_blocking(const Message& message);

  // A group of the members `ranks` (ranks of this group; the caller must be among them), over the store of this group.
  bool supportsSplitting() const final { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) final;

  // A group of the same ranks, in which this library's own calls cannot meet those of the program. The two break
  // together. Collective over the group. `name` is for errors.
  c10::intrusive_ptr<c10d::Backend> make_twin(const std::string& name);

  // A view of `store`, for these ranks of this group to make another group: a wait for a key fails with kPeerFailed
  // soon after one of them has died or left. A backend that does not see that returns `store`.
  virtual std::shared_ptr<comm::Store> watched(std::shared_ptr<comm::Store> store, std::vector<int> /*ranks*/) const {
    return store;
  }

  // The error that broke the group; ok while it works.
  virtual Status health() const = 0;
  c10d::ErrorType getError() final;

 protected:
  // A rank's membership of a group.
  struct Membership {
    std::shared_ptr<comm::Store> store;  // keys are this group's alone
    std::string name;                    // in errors
    int rank = 0;
    int size = 1;
    std::vector<int> global_ranks;      // by group rank; empty: the same numbers
    std::chrono::milliseconds timeout;  // for joining, and for each operation unless it has its own
  };

  explicit GroupBackend(Membership membership);

  const Membership& membership() const { return membership_; }
  int global_rank(int rank) const { return membership_.global_ranks.empty() ? rank : membership_.global_ranks[rank]; }
  std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const {
    return timeout <= std::chrono::milliseconds::zero() ? timeout_.load() : timeout;
  }

  // "rank 1, group 'world'": this rank in errors.
  virtual const std::string& who() const = 0;
  // Throws ArgumentError for messages that only this kind of backend refuses; `operation` is "send" or "recv".
  virtual void check_limits(const char* operation, const Message& message) const;
  // The backend of a part of this group. Collective over the part's members.
  virtual c10::intrusive_ptr<c10d::Backend> create_part(Membership part) const = 0;
  virtual c10::intrusive_ptr<c10d::Backend> create_twin(Membership twin) const;

 private:
  const Membership membership_;
  std::atomic<std::chrono::milliseconds> timeout_;
  Mutex mutex_;
  std::map<std::string, int> splits_ LOCKSTEP_GUARDED_BY(mutex_);  // by their members
  int twins_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep
