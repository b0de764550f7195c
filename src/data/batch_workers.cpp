#include "batch_workers.h"

#include <c10/util/ParallelGuard.h>
#include <fmt/format.h>

#include "base/thread.h"
#include "lockstep/base/log.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {

BatchWorkers::BatchWorkers(int threads, int prefetch, Delivery delivery, MakeBatch make)
    : prefetch_(prefetch), delivery_(delivery), make_(std::move(make)), active_(threads) {
  for (int i = 0; i < threads; ++i) {
    const Status added = add_thread();
    if (added.ok()) continue;
    stop();  // the workers so far wait for work: the destructor of threads_ alone would wait forever
    throw DataError(added.code(), fmt::format("worker {} of {}: {}", i + 1, threads, added.message()));
  }
}

BatchWorkers::~BatchWorkers() {
  stop();
}

Status BatchWorkers::add_thread() {
  const auto worker = static_cast<int>(threads_.size());
  LOCKSTEP_ASSIGN_OR_RETURN(std::jthread thread,
                            start_thread("a data loader's worker", [this, worker] { work(worker); }));
  threads_.push_back(std::move(thread));
  return {};
}

void BatchWorkers::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_there_.notify_all();
    wake_up_.notify_all();
  }
  threads_.clear();  // joins
}

void BatchWorkers::check_process() const {
  if (origin_.is_this_process()) return;
  throw DataError(
      ErrorCode::kUnsupported,
      "this process is a fork of the one that made the loader, whose workers are not here; make a loader in "
      "this process");
}

void BatchWorkers::start(std::shared_ptr<const EpochPlan> plan) {
  check_process();
  std::map<std::int64_t, MadeBatch> dropped;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  dropped.swap(made_);
  plan_ = std::move(plan);
  ++generation_;
  claimed_ = 0;
  taken_ = 0;
  work_there_.notify_all();
}

MadeBatch BatchWorkers::next() {
  check_process();
  MutexLock lock(mutex_);
  auto found = find_next();
  while (found == made_.end()) {
    batch_there_.wait(mutex_);
    found = find_next();
  }
  MadeBatch made = std::move(found->second);
  made_.erase(found);
  ++taken_;
  work_there_.notify_one();
  return made;
}

std::map<std::int64_t, MadeBatch>::iterator BatchWorkers::find_next() {
  return delivery_ == Delivery::kOrdered ? made_.find(taken_) : made_.begin();
}

int BatchWorkers::set_active(int threads) {
  check_process();
  Status added;
  while (static_cast<int>(threads_.size()) < threads && added.ok()) added = add_thread();
  if (!added.ok()) {
    threads = static_cast<int>(threads_.size());
    log::warning(fmt::format("a data loader goes on with {} workers: {}", threads, added.message()));
  }
  MutexLock lock(mutex_);
  active_ = threads;
  wake_up_.notify_all();
  work_there_.notify_all();  // workers that must sleep may not consume a notify_one() for others
  return threads;
}

void BatchWorkers::work(int worker) {
  // The other cores are busy with the model: LibTorch must not use more threads for this worker.
  const c10::ParallelGuard sequential(true);
  while (const std::optional<Claim> claimed = claim(worker)) deliver(*claimed, make(*claimed));
}

bool BatchWorkers::may_claim() const {
  return plan_ != nullptr && claimed_ < plan_->batches && claimed_ < taken_ + std::int64_t{active_} * prefetch_;
}

std::optional<BatchWorkers::Claim> BatchWorkers::claim(int worker) {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (worker >= active_) {
      wake_up_.wait(mutex_);
    } else if (!may_claim()) {
      work_there_.wait(mutex_);
    } else {
      return Claim{generation_, claimed_++, plan_};
    }
  }
  return std::nullopt;
}

MadeBatch BatchWorkers::make(const Claim& claim) const {
  MadeBatch made{.number = claim.batch};
  const auto begin = std::chrono::steady_clock::now();
  try {
    made.copied = make_(*claim.plan, claim.batch);
  } catch (...) {
    made.error = std::current_exception();
  }
  made.make_time = std::chrono::steady_clock::now() - begin;
  return made;
}

void BatchWorkers::deliver(const Claim& claim, MadeBatch made) {
  MutexLock lock(mutex_);
  if (claim.generation != generation_) return;
  made_.emplace(claim.batch, std::move(made));
  batch_there_.notify_one();
}

}  // namespace lockstep::data
