#include "background_hash.h"

#include <utility>

#include "base/thread.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::uint64_t kWorthAHashThread = 4 << 20;
constexpr std::size_t kMostWaiting = 32;

}  // namespace

BackgroundHash::BackgroundHash(Sha256 hash, std::uint64_t bytes) : hash_(std::move(hash)) {
  if (bytes < kWorthAHashThread) return;
  auto thread = start_thread("a checksum", [this] { run(); });
  if (thread.ok()) thread_ = std::move(thread).value();
}

BackgroundHash::~BackgroundHash() {
  stop();
}

void BackgroundHash::add(const torch::Tensor& tensor, std::span<const std::uint8_t> bytes) {
  if (!thread_.joinable()) return hash({tensor, bytes});
  {
    const MutexLock lock(mutex_);
    while (waiting_.size() >= kMostWaiting) changed_.wait(mutex_);
    waiting_.push_back({tensor, bytes});
  }
  changed_.notify_all();
}

std::string BackgroundHash::digits() {
  stop();
  if (failed_) std::rethrow_exception(failed_);
  return hash_.digits();
}

// What waits is hashed first.
void BackgroundHash::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundHash::run() {
  while (true) {
    Work work;
    {
      const MutexLock lock(mutex_);
      while (waiting_.empty() && !stopping_) changed_.wait(mutex_);
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    changed_.notify_all();
    try {
      hash(work);
    } catch (...) {
      failed_ = std::current_exception();
    }
  }
}

void BackgroundHash::hash(const Work& work) {
  hash_.update(work.bytes.data(), work.bytes.size());
}

}  // namespace lockstep::checkpoint
