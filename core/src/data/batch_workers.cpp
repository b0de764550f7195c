#include "batch_workers.h"

#include <c10/util/ParallelGuard.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/thread.h"
#include "data/exception_text.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/log.h"
#include "lockstep/data/errors.h"

namespace lockstep::data {

namespace {

constexpr std::int64_t kNoSample = -1;

// Where the present thread notes its sample; null in threads that are no workers.
thread_local std::atomic<std::int64_t>* sample_of_thread = nullptr;

}  // namespace

void note_sample(std::int64_t key) {
  if (sample_of_thread != nullptr) sample_of_thread->store(key, std::memory_order_relaxed);
}

BatchWorkers::BatchWorkers(WorkerOptions options, MakeBatch make)
    : options_(std::move(options)), make_(std::move(make)), active_(options_.threads) {
  for (int i = 0; i < options_.threads; ++i) {
    const Status added = add_thread();
    if (added.ok()) continue;
    stop();  // the workers so far wait for work: the destructor of threads_ alone would wait forever
    throw DataError(added.code(), fmt::format("worker {} of {}: {}", i + 1, options_.threads, added.message()));
  }
}

BatchWorkers::~BatchWorkers() {
  stop();
}

Status BatchWorkers::add_thread() {
  const auto worker = static_cast<int>(threads_.size());
  if (samples_.size() == threads_.size()) samples_.push_back(std::make_unique<Sample>(kNoSample));
  Sample& sample = *samples_.back();
  {
    MutexLock lock(mutex_);
    making_.resize(samples_.size());
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::jthread thread,
                            start_thread("a data loader's worker", [this, worker, &sample] { work(worker, sample); }));
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
  Made dropped;  // destroyed after the lock is released
  std::shared_ptr<const EpochPlan> old;
  MutexLock lock(mutex_);
  dropped.swap(made_);
  old = std::exchange(plan_, std::move(plan));
  ++generation_;
  claimed_ = 0;
  taken_ = 0;
  streams_.assign(plan_->streams.size(), Stream());
  turn_ = 0;
  work_there_.notify_all();
}

MadeBatch BatchWorkers::next() {
  check_process();
  const Clock::time_point deadline = Deadline::after(options_.timeout).when();
  MutexLock lock(mutex_);
  for (;;) {
    if (all_ended()) return {};
    const auto found = made_.find(wanted());
    if (found != made_.end()) {
      MadeBatch made = take(found);
      if (!made.is_end()) return made;
    } else if (options_.timeout.count() == 0) {
      batch_there_.wait(mutex_);
    } else if (!batch_there_.wait_until(mutex_, deadline) && !made_.contains(wanted())) {
      throw DataError(ErrorCode::kTimeout, describe_wait());
    }
  }
}

bool BatchWorkers::all_ended() const {
  return !streams_.empty() &&
         std::all_of(streams_.begin(), streams_.end(), [](const Stream& stream) { return stream.skipped; });
}

// The number of the batch whose turn it is.
std::int64_t BatchWorkers::wanted() const {
  if (streams_.empty()) return taken_;
  return static_cast<std::int64_t>(turn_ + streams_.size() * static_cast<std::size_t>(streams_[turn_].taken));
}

MadeBatch BatchWorkers::take(Made::iterator found) {
  MadeBatch made = std::move(found->second);
  made_.erase(found);
  ++taken_;
  if (streams_.empty()) {
    work_there_.notify_one();
    return made;
  }
  Stream& stream = streams_[static_cast<std::size_t>(made.number) % streams_.size()];
  ++stream.taken;
  stream.skipped = made.is_end();
  next_turn();
  work_there_.notify_all();  // only the worker of this stream can use it
  return made;
}

void BatchWorkers::next_turn() {
  for (std::size_t tries = 0; tries < streams_.size(); ++tries) {
    turn_ = (turn_ + 1) % streams_.size();
    if (!streams_[turn_].skipped) return;
  }
}

// Names what the consumer waits for: the worker with the wanted batch, or the one that has worked longest.
std::string BatchWorkers::describe_wait() const {
  const Making* slow = nullptr;
  std::size_t worker = 0;
  for (std::size_t i = 0; i < making_.size(); ++i) {
    if (!making_[i].claim) continue;
    const bool is_wanted = making_[i].claim->generation == generation_ && making_[i].claim->batch == wanted();
    if (slow == nullptr || is_wanted || making_[i].since < slow->since) {
      slow = &making_[i];
      worker = i;
    }
    if (is_wanted) break;
  }
  const std::string waited =
      fmt::format("the loader got no batch within its timeout of {} ms", options_.timeout.count());
  if (slow == nullptr) return waited + ": no worker is making one";
  const EpochPlan& plan = *slow->claim->plan;
  const std::int64_t batch = slow->claim->batch;
  const double seconds = std::chrono::duration<double>(Clock::now() - slow->since).count();
  std::string samples = " of its stream";
  if (plan.streams.empty()) {
    constexpr std::size_t kMost = 8;
    const auto all = plan.indices_of(batch);
    samples = fmt::format(" (samples {}{})", fmt::join(all.first(std::min(all.size(), kMost)), ", "),
                          all.size() > kMost ? ", ..." : "");
  }
  const std::int64_t at = samples_[worker]->load(std::memory_order_relaxed);
  const std::int64_t sample = plan.streams.empty() && plan.dataset_size > 0 ? at % plan.dataset_size : at;
  const std::int64_t number = plan.streams.empty() ? batch : batch / static_cast<std::int64_t>(plan.streams.size());
  return fmt::format(
      "{}: worker {} has been making batch {}{} for {:.1f} s{}. The worker cannot be stopped: find out what "
      "its dataset waits for, or set a longer timeout",
      waited, worker, number, samples, seconds, at == kNoSample ? "" : fmt::format(", and is at sample {}", sample));
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

void BatchWorkers::work(int worker, Sample& sample) {
  // The other cores are busy with the model: LibTorch must not use more threads for this worker.
  const c10::ParallelGuard sequential(true);
  sample_of_thread = &sample;
  while (const std::optional<Claim> claimed = claim(worker)) {
    sample.store(kNoSample, std::memory_order_relaxed);
    deliver(worker, *claimed, make(*claimed));
  }
}

bool BatchWorkers::may_claim(int worker) const {
  if (plan_ == nullptr) return false;
  if (streams_.empty()) {
    return claimed_ < plan_->batches && claimed_ < taken_ + std::int64_t{active_} * options_.prefetch;
  }
  const Stream& stream = streams_[static_cast<std::size_t>(worker)];
  return !stream.ended && stream.claimed < stream.taken + options_.prefetch;
}

std::int64_t BatchWorkers::claim_number(int worker) {
  if (streams_.empty()) return claimed_++;
  return worker + static_cast<std::int64_t>(streams_.size()) * streams_[static_cast<std::size_t>(worker)].claimed++;
}

std::optional<BatchWorkers::Claim> BatchWorkers::claim(int worker) {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (worker >= active_) {
      wake_up_.wait(mutex_);
    } else if (!may_claim(worker)) {
      work_there_.wait(mutex_);
    } else {
      Claim claimed{generation_, claim_number(worker), plan_};
      making_[static_cast<std::size_t>(worker)] = {claimed, Clock::now()};
      return claimed;
    }
  }
  return std::nullopt;
}

MadeBatch BatchWorkers::make(const Claim& claim) const {
  MadeBatch made{.number = claim.batch};
  const auto begin = Clock::now();
  try {
    made.copied = make_(*claim.plan, claim.batch);
  } catch (...) {
    made.error = std::current_exception();
  }
  made.make_time = Clock::now() - begin;
  return made;
}

void BatchWorkers::deliver(int worker, const Claim& claim, MadeBatch made) {
  std::optional<Claim> done;  // its plan may be the last user of old streams: destroyed after the lock is released
  MutexLock lock(mutex_);
  done.swap(making_[static_cast<std::size_t>(worker)].claim);
  if (claim.generation != generation_) return;
  if (made.is_end()) streams_[static_cast<std::size_t>(worker)].ended = true;
  made_.emplace(claim.batch, std::move(made));
  batch_there_.notify_one();
}

}  // namespace lockstep::data
