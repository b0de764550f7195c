// The c10d::Work of backend mpi: one or more requests of MPI that count as one. There is no progress thread: requests
// move on inside wait() and isCompleted() of any work, inside later calls of the group, and, once a future was asked
// for, in a thread of the group.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "c10d/group_work.h"
#include "mpi/mpi_group.h"

namespace lockstep {

class MpiWork final : public GroupWork {
 public:
  struct Pending {
    std::shared_ptr<MpiGroup> group;
    const char* operation = "";
    std::uint64_t sequence = 0;
    std::vector<MPI_Request> requests = {};
    std::vector<at::Tensor> kept = {};                      // what MPI reads and writes
    std::vector<std::shared_ptr<const void>> layouts = {};  // counts and offsets that MPI reads
    std::vector<std::function<void()>> finishers = {};      // from MPI's memory to the outputs
    Deadline deadline = Deadline::never();
    WorksUnderWay::Shared earlier = nullptr;  // of a barrier: what must be settled first
  };

  // Work that is done.
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs);
  // Work that was started.
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, Pending pending);
  ~MpiWork() override;

  bool advance() override;
  void finish_by(Deadline deadline) override;
  void give_up() override;
  int sourceRank() const override;
  void abort() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  bool is_receive() const { return opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE; }
  // Settles when the requests are done or one has failed; answers whether the work is settled.
  bool progress() LOCKSTEP_EXCLUDES(pending_mutex_);
  Status test(bool& all_done) LOCKSTEP_REQUIRES(pending_mutex_);
  Status test_requests(bool& all_done) LOCKSTEP_REQUIRES(pending_mutex_);
  Status check_received(const MPI_Status& status) const;
  void time_out();
  void conclude(const Status& status) override LOCKSTEP_EXCLUDES(pending_mutex_);
  std::exception_ptr make_exception(const Status& status) const override;
  std::shared_ptr<FutureCompleter> completer() override { return group_->completer(); }
  Deadline deadline() const override { return deadline_; }
  std::string name() const;

  const std::shared_ptr<MpiGroup> group_;
  const char* const operation_ = "";
  const std::uint64_t sequence_ = 0;
  const Deadline deadline_ = Deadline::never();
  std::atomic<int> source_{-1};
  Mutex pending_mutex_;
  Pending pending_ LOCKSTEP_GUARDED_BY(pending_mutex_);
};

}  // namespace lockstep
