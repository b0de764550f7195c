// The checksums of tensor files. Each covers the whole file, with zeros in place of its own digits.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/mutex.h"
#include "sha256.h"

namespace lockstep::checkpoint {

// What the metadata have: lower-case hexadecimal digits under a key.
struct ChecksumKind {
  std::string_view key;
  std::string_view name;
  std::size_t digits;
};
// Of files that a training must be able to trust. Calculating it takes longer than writing.
inline constexpr ChecksumKind kSha256{"lockstep.sha256", "SHA-256", kSha256Digits};
// Of state dicts, which Python reads and writes without any, and which it maps: as in the files of torch.save. It
// takes a small part of the time.
inline constexpr ChecksumKind kCrc32{"lockstep.crc32", "CRC-32", 8};

// A checksum in the text of a header.
struct ChecksumPlace {
  ChecksumKind kind;
  std::size_t at;  // of the first digit
};
// Nothing if there is none with as many digits as it must have.
std::optional<ChecksumPlace> find_checksum(std::string_view text);

// A SHA-256 that is calculated in a thread while the caller reads or writes the bytes, which takes about as long.
class BackgroundHash {
 public:
  // Goes on with `hash`. `bytes`: how many will be added. Few are not worth a thread; without one (the system may
  // refuse it) add() does the work.
  BackgroundHash(Sha256 hash, std::uint64_t bytes);
  ~BackgroundHash();
  BackgroundHash(const BackgroundHash&) = delete;
  BackgroundHash& operator=(const BackgroundHash&) = delete;

  // Adds bytes of a CPU tensor, which must not change before digits(). Waits while much is not hashed yet: the tensors
  // may be copies, which take memory.
  void add(const torch::Tensor& tensor, std::span<const std::uint8_t> bytes);
  // Ends the calculation.
  std::string digits();

 private:
  struct Work {
    torch::Tensor tensor;  // keeps the bytes alive
    std::span<const std::uint8_t> bytes;
  };

  void run();
  void hash(const Work& work);
  void stop();

  Sha256 hash_;  // the thread's, while there is one
  std::exception_ptr failed_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Work> waiting_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

class FileChecksum {
 public:
  static constexpr std::size_t kPiece = 1 << 20;  // bytes that are still in the cache when they are used again

  // Starts with everything before the data: the length of the header and its text. `data`: how many bytes will follow.
  FileChecksum(std::string text, const ChecksumPlace& place, std::uint64_t data);

  // Adds bytes of `tensor`, which must not change before digits().
  void add(const torch::Tensor& tensor, std::span<const std::uint8_t> bytes);
  // Ends the calculation.
  std::string digits();

 private:
  std::optional<BackgroundHash> hash_;
  std::uint32_t crc_ = 0;
};

}  // namespace lockstep::checkpoint
