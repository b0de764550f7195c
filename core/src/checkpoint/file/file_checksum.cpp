#include "file_checksum.h"

#include <fmt/format.h>

#include <utility>

#include "base/thread.h"
#include "crc32.h"

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

std::optional<ChecksumPlace> find_checksum(std::string_view text) {
  for (const ChecksumKind& kind : {kSha256, kCrc32}) {
    // JSON escapes quotes inside of texts, so this can only be the key itself.
    const std::string before = fmt::format("\"{}\":\"", kind.key);
    const std::size_t found = text.find(before);
    if (found == std::string_view::npos) continue;
    const std::size_t at = found + before.size();
    if (text.size() > at + kind.digits && text[at + kind.digits] == '"') return ChecksumPlace{kind, at};
  }
  return std::nullopt;
}

FileChecksum::FileChecksum(std::string text, const ChecksumPlace& place, std::uint64_t data) {
  text.replace(place.at, place.kind.digits, place.kind.digits, '0');
  const std::uint64_t length = text.size();
  if (place.kind.key == kCrc32.key) {
    crc_ = crc32_of(crc32_of(0, &length, sizeof(length)), text.data(), text.size());
    return;
  }
  Sha256 hash;
  hash.update(&length, sizeof(length));
  hash.update(text);
  hash_.emplace(std::move(hash), data);
}

void FileChecksum::add(const torch::Tensor& tensor, std::span<const std::uint8_t> bytes) {
  if (hash_) return hash_->add(tensor, bytes);
  crc_ = crc32_of(crc_, bytes.data(), bytes.size());
}

std::string FileChecksum::digits() {
  return hash_ ? hash_->digits() : fmt::format("{:08x}", crc_);
}

}  // namespace lockstep::checkpoint
