// The c10d::Work of backend mpi: one or more of MPI's requests that count as one. There is no progress thread: wait()
// and isCompleted() of any work make progress, and so do later calls of the group. Once somebody has asked for a
// future, a thread of the group does too.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "c10d/backend/group_work.h"
#include "c10d/backend/held_memory.h"
#include "mpi/mpi_group.h"

namespace lockstep {

class MpiWork final : public GroupWork {
 public:
  struct Pending {
    std::shared_ptr<MpiGroup> group;
    const char* operation = "";
    std::uint64_t sequence = 0;
    CallPlace place = {};
    std::vector<MPI_Request> requests = {};
    std::vector<HeldMemory> kept = {};                      // what MPI reads and writes
    std::vector<std::shared_ptr<const void>> layouts = {};  // counts and offsets that MPI reads
    std::vector<std::function<void()>> finishers = {};      // from MPI's memory to the outputs
    Deadline deadline = Deadline::never();
    WorksUnderWay::Shared earlier = nullptr;  // of a barrier: works that must be settled first
  };

  // For an operation that is done.
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);
  // For operations that were started.
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending);
  ~MpiWork() override;

  bool test() override;
  void finish_by(Deadline deadline) override;
  void give_up() override;
  void abort() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  int source() const override { return source_; }
  // Settles the work when all requests are done or one has failed. Returns whether it is settled.
  bool settle_if_done() LOCKSTEP_EXCLUDES(pending_mutex_);
  Status test_all(bool& all_done) LOCKSTEP_REQUIRES(pending_mutex_);
  Status test_requests(bool& all_done) LOCKSTEP_REQUIRES(pending_mutex_);
  Status check_received(const MPI_Status& status) const;
  // Settles the work, with the error of a rank that has refused a call, or with a timeout.
  void time_out();
  // Settles it if a rank has refused a call that this rank has begun. Asks now and then.
  void look_for_refusals(bool now = false);
  void conclude(const Status& status) override LOCKSTEP_EXCLUDES(pending_mutex_);
  std::exception_ptr make_exception(const Status& status) const override;
  std::shared_ptr<FutureCompleter> completer() override { return group_->completer(); }
  Deadline deadline() const override { return deadline_; }
  // "all_reduce #3 at src/train.cpp:41".
  std::string describe() const { return group_->describe(operation_, sequence_, place_); }
  std::string name() const;

  const std::shared_ptr<MpiGroup> group_;
  const char* const operation_ = "";
  const std::uint64_t sequence_ = 0;
  const CallPlace place_;
  const Deadline deadline_ = Deadline::never();
  const Deadline patience_ = Deadline::never();  // then it begins to ask for refusals
  std::atomic<int> source_{-1};
  Mutex pending_mutex_;
  Pending pending_ LOCKSTEP_GUARDED_BY(pending_mutex_);
};

}  // namespace lockstep
