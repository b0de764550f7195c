#include "data_parallel_threads.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>

#include <new>
#include <string>
#include <utility>

#include "base/thread.h"

namespace lockstep::nn_detail {
namespace {

// The replicas whose task this thread is running.
thread_local const ReplicaThreads* working_for = nullptr;

// What an operator looks up in its thread, taken from the caller of a run: ThreadLocalState has the modes and the
// dispatch keys; autocast's types and the current streams are elsewhere.
class CallerState {
 public:
  explicit CallerState(const std::vector<ReplicaPlace>& places) {
    const torch::DeviceType type = places.front().device.type();
    types_ = {torch::kCPU};
    if (type != torch::kCPU) {
      types_.push_back(type);
      const c10::impl::VirtualGuardImpl guard(type);
      for (const ReplicaPlace& place : places) streams_.push_back(guard.getStream(place.device));
    }
    for (const torch::DeviceType each : types_) dtypes_.push_back(at::autocast::get_autocast_dtype(each));
  }

  // Runs `task` as the caller would on `device`.
  template <typename Task>
  void apply(torch::Device device, const Task& task) const {
    const at::ThreadLocalStateGuard modes(state_);
    const bool cache_before = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(cache_);
    std::vector<at::ScalarType> before;
    for (std::size_t i = 0; i < types_.size(); ++i) {
      before.push_back(at::autocast::get_autocast_dtype(types_[i]));
      at::autocast::set_autocast_dtype(types_[i], dtypes_[i]);
    }
    const auto restore = [&] {
      for (std::size_t i = 0; i < types_.size(); ++i) at::autocast::set_autocast_dtype(types_[i], before[i]);
      at::autocast::set_autocast_cache_enabled(cache_before);
    };
    try {
      if (streams_.empty()) {
        task();
      } else {
        const c10::MultiStreamGuard streams(streams_);
        const c10::DeviceGuard on_device(device);
        task();
      }
    } catch (...) {
      restore();
      throw;
    }
    restore();
  }

 private:
  at::ThreadLocalState state_;
  std::vector<torch::DeviceType> types_;
  std::vector<at::ScalarType> dtypes_;
  std::vector<c10::Stream> streams_;
  bool cache_ = at::autocast::is_autocast_cache_enabled();
};

// Memory that the C++ library could not give. LibTorch's own allocators throw a c10::Error.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

// Keeps the type of LibTorch's errors, and std::bad_alloc; others become a c10::Error that holds the original
// (std::rethrow_if_nested).
[[noreturn]] void rethrow_with_name(const std::exception_ptr& error, std::size_t index, const std::string& device) {
  const std::string where = fmt::format("replica {} on {}", index, device);
  try {
    std::rethrow_exception(error);
  } catch (c10::Error& found) {
    found.add_context("in " + where);
    throw;
  } catch (const std::bad_alloc& found) {
    throw OutOfMemory(fmt::format("{}: out of memory ({})", where, found.what()));
  } catch (const std::exception& found) {
    std::throw_with_nested(c10::Error({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                                      fmt::format("{}: {}", where, found.what())));
  } catch (...) {
    std::throw_with_nested(c10::Error({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                                      where + ": an exception that is no std::exception"));
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(std::vector<ReplicaPlace> places) : places_(std::move(places)) {
  const int threads = at::get_num_threads();
  try {
    for (std::size_t i = 0; i < places_.size(); ++i) start(i);
  } catch (...) {
    stop();
    throw;
  }
  // Each thread has called at::set_num_threads, which also sets the default for threads that start later. This call
  // puts back the caller's number.
  at::set_num_threads(threads);
}

ReplicaThreads::~ReplicaThreads() {
  stop();
}

// Waits until the thread is ready, because at::set_num_threads is not thread-safe.
void ReplicaThreads::start(std::size_t index) {
  workers_.push_back(std::make_unique<Worker>());
  Worker& worker = *workers_.back();
  Result<std::jthread> thread =
      start_thread(fmt::format("DataParallel, replica {} on {}", index, places_[index].name), [this, index] {
        prepare(index);
        work(index);
      });
  if (!thread.ok()) workers_.pop_back();
  TORCH_CHECK(thread.ok(), thread.status().message());
  worker.thread = std::move(thread.value());
  const MutexLock lock(mutex_);
  while (!worker.ready) changed_.wait(mutex_);
}

void ReplicaThreads::prepare(std::size_t index) const {
  const ReplicaPlace& place = places_[index];
  if (!place.cores.empty()) {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (const int core : place.cores) CPU_SET(core, &mask);
    sched_setaffinity(0, sizeof mask, &mask);  // where the system refuses it, the thread runs on all cores
  }
  if (place.intra_op_threads == 0) return;
  at::get_num_threads();  // otherwise the first operator calls it and overwrites the number
  at::set_num_threads(place.intra_op_threads);
}

void ReplicaThreads::work(std::size_t index) {
  mutex_.lock();
  Worker& worker = *workers_[index];
  worker.ready = true;
  changed_.notify_all();
  while (true) {
    while (worker.job == nullptr && !stopping_) worker.wake.wait(mutex_);
    if (stopping_) break;
    const std::function<void()>& job = *worker.job;
    mutex_.unlock();
    job();
    mutex_.lock();
    worker.job = nullptr;
    if (--running_ != 0) continue;
    // Without the lock, which the caller would have to wait for as soon as it is awake.
    mutex_.unlock();
    changed_.notify_all();
    mutex_.lock();
  }
  mutex_.unlock();
}

void ReplicaThreads::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  for (const auto& worker : workers_) worker->wake.notify_one();
  workers_.clear();  // joins
}

void ReplicaThreads::run(std::size_t count, const Task& task, std::optional<std::size_t> here) {
  TORCH_CHECK(origin_.is_this_process(),
              "DataParallel was made before this process forked, and its threads are not in the fork; make a new one");
  TORCH_CHECK(working_for != this,
              "a replica of DataParallel called the same DataParallel, whose threads are all busy");
  const CallerState caller(places_);
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::function<void()>> jobs;
  jobs.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    jobs.emplace_back([&, i] {
      const ReplicaThreads* const before = std::exchange(working_for, this);
      try {
        caller.apply(places_[i].device, [&] { task(i); });
      } catch (...) {
        errors[i] = std::current_exception();
      }
      working_for = before;
    });
  }
  {
    const MutexLock one_at_a_time(calls_);
    if (places_.front().device.is_cpu()) end_openmp_threads();
    {
      const MutexLock lock(mutex_);
      for (std::size_t i = 0; i < count; ++i) {
        if (i != here) workers_[i]->job = &jobs[i];
      }
      running_ = here ? count - 1 : count;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (i != here) workers_[i]->wake.notify_one();
    }
    if (here) jobs[*here]();
    const MutexLock lock(mutex_);
    while (running_ != 0) changed_.wait(mutex_);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (errors[i]) rethrow_with_name(errors[i], i, places_[i].name);
  }
}

void end_openmp_threads() {
  // OpenMP 5.0: omp_pause_resource(omp_pause_soft, omp_get_initial_device()). The numbers of devices before 6.0: the
  // host comes after all others, and initial_device is -1 in libgomp and in libomp. LibTorch brings its own library
  // under a name that differs from release to release, so it is found by the symbol.
  using Pause = int (*)(int kind, int device);
  using InitialDevice = int (*)();
  static const auto pause = reinterpret_cast<Pause>(dlsym(RTLD_DEFAULT, "omp_pause_resource"));
  static const auto initial_device = reinterpret_cast<InitialDevice>(dlsym(RTLD_DEFAULT, "omp_get_initial_device"));
  constexpr int kSoft = 1;
  if (pause != nullptr && initial_device != nullptr) pause(kSoft, initial_device());
}

}  // namespace lockstep::nn_detail
