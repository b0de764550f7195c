#include "mpi/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "mpi/mpi_runtime.h"
#include "mpi/mpi_work.h"

namespace lockstep {
namespace {

constexpr std::chrono::microseconds kPollPause{100};

}  // namespace

MpiGroup::MpiGroup(MPI_Comm communicator, std::string who, int world_size)
    : who_(std::move(who)), world_size_(world_size), communicator_(communicator) {}

MpiGroup::~MpiGroup() {
  leave();
}

Status MpiGroup::error() const {
  MutexLock lock(mutex_);
  return error_;
}

Status MpiGroup::health() const {
  if (!origin_.is_this_process()) return {ErrorCode::kUnsupported, "this process is a fork of " + who_};
  MutexLock lock(mutex_);
  if (!error_.ok()) return {ErrorCode::kAborted, "the group is broken since " + error_.message()};
  if (left_) return {ErrorCode::kAborted, "this rank has left the group (destroy_process_group or shutdown)"};
  return {};
}

void MpiGroup::break_with(const Status& error) {
  {
    MutexLock lock(mutex_);
    if (error_.ok()) error_ = error;
  }
  MpiRuntime::of_process().give_up_finalising();
}

void MpiGroup::add(c10::intrusive_ptr<MpiWork> work) {
  MutexLock lock(mutex_);
  works_.push_back(std::move(work));
  changed_.notify_all();
}

void MpiGroup::poll() {
  std::vector<c10::intrusive_ptr<MpiWork>> works;
  {
    MutexLock lock(mutex_);
    works = works_;
  }
  // Outside the lock: finishing a work may run callbacks, which may call this group.
  for (const auto& work : works) work->complete_if_due();
  MutexLock lock(mutex_);
  std::erase_if(works_, [](const auto& work) { return work->is_settled(); });
}

void MpiGroup::start_polling() {
  MutexLock lock(mutex_);
  if (!poller_.joinable() && !left_) poller_ = std::thread([self = shared_from_this()] { self->keep_polling(); });
}

void MpiGroup::keep_polling() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (!left_ && works_.empty()) changed_.wait(mutex_);
      if (!left_) changed_.wait_until(mutex_, std::chrono::steady_clock::now() + kPollPause);
      if (left_) return;
    }
    poll();
  }
}

void MpiGroup::leave() {
  if (!origin_.is_this_process()) return;
  std::thread poller;
  {
    MutexLock lock(mutex_);
    if (left_) return;
    left_ = true;
    changed_.notify_all();
    poller.swap(poller_);
  }
  if (poller.get_id() == std::this_thread::get_id()) {
    poller.detach();
  } else if (poller.joinable()) {
    poller.join();
  }
  poll();
  std::vector<c10::intrusive_ptr<MpiWork>> unfinished;
  Status error;
  {
    MutexLock lock(mutex_);
    unfinished.swap(works_);
    error = error_;
  }
  for (const auto& work : unfinished) work->give_up();
  MpiRuntime& runtime = MpiRuntime::of_process();
  {
    MutexLock lock(runtime.mutex());
    // A communicator with operations under way stays: freeing it would wait for other ranks.
    if (unfinished.empty() && error.ok() && runtime.is_usable()) MPI_Comm_free(&communicator_);
  }
  runtime.leave_group();
}

}  // namespace lockstep
