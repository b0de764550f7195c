// The checksums of tensor files. Each covers the whole file, with zeros in place of its own digits.
#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "base/no_forks.h"
#include "lockstep/base/mutex.h"

namespace lockstep::checkpoint {

inline constexpr std::size_t kSha256Digits = 64;

// Else OpenSSL ends when exit() begins, and files are still written and read then: by the threads of saves, and by
// destructors of static objects. Without effect in a program that has used OpenSSL before.
inline void keep_openssl_at_exit() {
  static const int done = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  static_cast<void>(done);
}

// SHA-256, from OpenSSL.
class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    const NoForks while_openssl_locks;  // it looks the digest up; the rest needs no lock
    keep_openssl_at_exit();
    if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) fail();
  }
  void update(const void* bytes, std::size_t count) {
    if (EVP_DigestUpdate(context_.get(), bytes, count) != 1) fail();
  }
  void update(std::string_view bytes) { update(bytes.data(), bytes.size()); }

  // Ends the calculation and returns lower-case hexadecimal digits.
  std::string digits() {
    std::array<unsigned char, kSha256Digits / 2> digest{};
    if (EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) != 1) fail();
    std::string text;
    for (const unsigned char byte : digest) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  }

 private:
  [[noreturn]] static void fail() { throw std::runtime_error("OpenSSL cannot calculate SHA-256"); }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

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
