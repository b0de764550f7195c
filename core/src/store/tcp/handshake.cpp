#include "store/tcp/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>

#include "base/no_forks.h"
#include "base/printable.h"

namespace lockstep::comm::handshake {
namespace {

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string result(kKeyBytes, '\0');
  unsigned int bytes = 0;
  ::HMAC(::EVP_sha256(), key.data() == nullptr ? "" : key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(result.data()), &bytes);
  return result;
}

}  // namespace

void keep_openssl_at_exit() {
  static const int done = ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  static_cast<void>(done);
}

std::string tls_key(std::string_view key, std::string_view place) {
  const NoForks during_calls;
  keep_openssl_at_exit();
  std::string extracted = hmac_sha256(std::string(kKeyBytes, '\0'), key);
  std::string made = hmac_sha256(extracted, std::string("lockstep store tls 1.3 ").append(place).append(1, '\1'));
  wipe(extracted);
  return made;
}

void wipe(std::string& key) {
  ::OPENSSL_cleanse(key.data(), key.size());
  key.clear();
}

Status check_job_key(std::string_view key) {
  if (key.empty() || key.size() >= kShortestKey) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("the job key (LOCKSTEP_JOB_KEY, --job-key-file) has {} characters, expected at least {}, because "
                      "short ones can be guessed. `openssl rand -hex 32` makes one",
                      key.size(), kShortestKey)};
}

Result<std::string> make_key() {
  const NoForks during_calls;
  keep_openssl_at_exit();
  std::string key(kKeyBytes, '\0');
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(key.data()), static_cast<int>(key.size())) != 1) {
    return Status(ErrorCode::kIo, "OpenSSL has no random bytes to authenticate with");
  }
  return key;
}

std::string to_bytes(const Greeting& greeting) {
  std::string key_socket = greeting.key_socket;
  key_socket.resize(kSocketNameBytes, '\0');
  return std::string(kMark).append(1, static_cast<char>(greeting.source)).append(key_socket);
}

Result<Greeting> read_greeting(std::string_view bytes, std::string_view where) {
  constexpr std::string_view kMarkOfEachRelease = kMark.substr(0, kMark.size() - 1);
  if (bytes.starts_with(kMarkOfEachRelease) && !bytes.starts_with(kMark)) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("the store at {} belongs to another release of Lockstep (it says {}, expected {}): run "
                              "the same release on every rank and every launcher",
                              where, printable(bytes.substr(0, kMark.size())), kMark));
  }
  if (bytes.size() != kGreetingBytes || !bytes.starts_with(kMark)) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("another program answers at {}: it does not speak Lockstep's store protocol. Choose "
                              "another port, or check the address",
                              where));
  }
  Greeting greeting;
  greeting.source = static_cast<KeySource>(bytes[kMark.size()]);
  greeting.key_socket = bytes.substr(kMark.size() + 1);
  greeting.key_socket.resize(std::min(greeting.key_socket.size(), greeting.key_socket.find('\0')));
  return greeting;
}

std::optional<std::size_t> missing_of_hello(std::string_view bytes) {
  // A record: 22 (of a handshake), the version 3.1 or 3.3, u16 length (big-endian) of what follows. A client's hello:
  // 1, u24 length of what follows. OpenSSL takes memory for the length that a hello announces: the record must have it
  // all.
  constexpr std::size_t kHeaderBytes = 5;
  constexpr std::size_t kHelloHeaderBytes = 4;
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (bytes.size() >= 1 && at(0) != 22) return std::nullopt;
  if (bytes.size() >= 2 && at(1) != 3) return std::nullopt;
  if (bytes.size() > kHeaderBytes && at(kHeaderBytes) != 1) return std::nullopt;
  if (bytes.size() < kHeaderBytes) return kHeaderBytes - bytes.size();
  const std::size_t whole = kHeaderBytes + (std::size_t{at(3)} << 8 | at(4));
  if (whole > kLongestHello || whole <= kHeaderBytes + kHelloHeaderBytes || bytes.size() > whole) return std::nullopt;
  if (bytes.size() >= kHeaderBytes + kHelloHeaderBytes) {
    const std::size_t hello = std::size_t{at(6)} << 16 | std::size_t{at(7)} << 8 | at(8);
    if (kHeaderBytes + kHelloHeaderBytes + hello != whole) return std::nullopt;
  }
  return whole - bytes.size();
}

Status wrong_place(std::string_view where) {
  return {ErrorCode::kPermission,
          fmt::format("the store that answers at {} is another one, or has another address or port: the connection "
                      "reaches it through a program or a router that translates addresses. Give every rank the "
                      "store's own address. If this is the store's own address, the store's OpenSSL failed",
                      where)};
}

Status wrong_key(KeySource source, bool own_key, std::string_view where) {
  std::string_view what = "has another job key than this process";
  if (source == KeySource::kStore) what = "makes its own key, as it has no job key, and this process has another";
  if (source == KeySource::kUser) {
    what =
        "has the user's own key, and the one that this process finds is another: is "
        "the home directory shared between the machines?";
  }
  if (source == KeySource::kJob && !own_key) what = "asks for a job key, and this process has none";
  if (source != KeySource::kJob && own_key) what = "has no job key, but this process has one";
  return {ErrorCode::kPermission,
          fmt::format("the store at {} {}. Give LOCKSTEP_JOB_KEY the same value on every rank, or check that the "
                      "address is not another job's",
                      where, what)};
}

}  // namespace lockstep::comm::handshake
