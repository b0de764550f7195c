#include "batch_workers.h"

#include <c10/util/ParallelGuard.h>

namespace lockstep::data {

BatchWorkers::BatchWorkers(int threads, std::int64_t window, MakeBatch make)
    : window_(window), make_(std::move(make)), slots_(static_cast<std::size_t>(window)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

BatchWorkers::~BatchWorkers() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_there_.notify_all();
  }
  threads_.clear();  // joins
}

void BatchWorkers::start(std::shared_ptr<const EpochPlan> plan, std::int64_t batches) {
  std::vector<std::optional<Slot>> dropped(static_cast<std::size_t>(window_));  // destroyed after the lock is given up
  MutexLock lock(mutex_);
  dropped.swap(slots_);
  plan_ = std::move(plan);
  ++epoch_;
  batches_ = batches;
  claimed_ = 0;
  delivered_ = 0;
  work_there_.notify_all();
}

Example BatchWorkers::next() {
  std::optional<Slot> taken;
  {
    MutexLock lock(mutex_);
    std::optional<Slot>& slot = slots_[static_cast<std::size_t>(delivered_ % window_)];
    while (!slot) batch_there_.wait(mutex_);
    taken.swap(slot);
    ++delivered_;
    work_there_.notify_one();
  }
  if (taken->error) std::rethrow_exception(taken->error);
  return std::move(taken->batch);
}

void BatchWorkers::work() {
  // The other cores are busy with the model: LibTorch shall not start a team of threads for this worker too.
  const c10::ParallelGuard sequential(true);
  while (const std::optional<Claim> claimed = claim()) deliver(*claimed, make(*claimed));
}

std::optional<BatchWorkers::Claim> BatchWorkers::claim() {
  MutexLock lock(mutex_);
  while (!stopping_ && (claimed_ == batches_ || claimed_ == delivered_ + window_)) work_there_.wait(mutex_);
  if (stopping_) return std::nullopt;
  return Claim{epoch_, claimed_++, plan_};
}

BatchWorkers::Slot BatchWorkers::make(const Claim& claim) const {
  Slot slot;
  try {
    slot.batch = make_(*claim.plan, claim.batch);
  } catch (...) {
    slot.error = std::current_exception();
  }
  return slot;
}

void BatchWorkers::deliver(const Claim& claim, Slot slot) {
  MutexLock lock(mutex_);
  if (claim.epoch != epoch_) return;
  slots_[static_cast<std::size_t>(claim.batch % window_)] = std::move(slot);
  batch_there_.notify_one();
}

}  // namespace lockstep::data
