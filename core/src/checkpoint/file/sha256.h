// SHA-256, from OpenSSL.
#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

inline constexpr std::size_t kSha256Digits = 64;

// Else OpenSSL ends when exit() begins, and files are still written and read then: by the threads of saves, and by
// destructors of static objects. Without effect in a program that has used OpenSSL before.
inline void keep_openssl_at_exit() {
  static const int done = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  static_cast<void>(done);
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
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

}  // namespace lockstep::checkpoint
