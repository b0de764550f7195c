#include "store/tcp/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>

namespace lockstep::comm::handshake {
namespace {

// Else OpenSSL ends when exit() begins, while the thread of a store still serves other ranks, and a static object may
// still connect. Without effect in a program that has used OpenSSL before.
void keep_openssl_at_exit() {
  static const int done = ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  static_cast<void>(done);
}

std::string proof(std::string_view key, std::string_view place, std::string_view label, std::string_view server_nonce,
                  std::string_view client_nonce) {
  keep_openssl_at_exit();
  std::string text("lockstep store ");
  text.append(label).append(1, '\0').append(server_nonce).append(client_nonce).append(place);
  std::string result(kProofBytes, '\0');
  unsigned int bytes = 0;
  ::HMAC(::EVP_sha256(), key.data() == nullptr ? "" : key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(result.data()), &bytes);
  return result;
}

bool same_bytes(std::string_view left, std::string_view right) {
  return left.size() == right.size() && ::CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
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
                      "address is not another job's, and that the connection reaches the store without translation of "
                      "the address or port on the way",
                      where, what)};
}

}  // namespace

Status check_job_key(std::string_view key) {
  if (key.empty() || key.size() >= kShortestKey) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("the job key (LOCKSTEP_JOB_KEY, --job-key-file) has {} characters, expected at least {}, because "
                      "short ones can be guessed. `openssl rand -hex 32` makes one",
                      key.size(), kShortestKey)};
}

Result<std::string> make_nonce() {
  keep_openssl_at_exit();
  std::string nonce(kNonceBytes, '\0');
  if (::RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1) {
    return Status(ErrorCode::kIo, "OpenSSL has no random bytes to authenticate with");
  }
  return nonce;
}

std::string server_hello(const ServerHello& hello) {
  std::string key_socket = hello.key_socket;
  key_socket.resize(kSocketNameBytes, '\0');
  return std::string(kMark).append(1, static_cast<char>(hello.source)).append(key_socket).append(hello.nonce);
}

std::string client_hello(std::string_view key, std::string_view place, std::string_view server_nonce,
                         std::string_view client_nonce) {
  return std::string(kMark).append(client_nonce).append(proof(key, place, "client", server_nonce, client_nonce));
}

Judgement judge(std::string_view key, std::span<const std::string> places, std::string_view server_nonce,
                std::string_view hello) {
  if (hello.size() != kClientHelloBytes || hello.substr(0, kMark.size()) != kMark) return {Verdict::kNotOurs, ""};
  const auto client_nonce = hello.substr(kMark.size(), kNonceBytes);
  const auto claimed = hello.substr(kMark.size() + kNonceBytes);
  for (const std::string& place : places) {
    if (!same_bytes(claimed, proof(key, place, "client", server_nonce, client_nonce))) continue;
    return {Verdict::kWelcome, std::string(1, static_cast<char>(Verdict::kWelcome))
                                   .append(proof(key, place, "server", server_nonce, client_nonce))};
  }
  return {Verdict::kWrongKey,
          std::string(1, static_cast<char>(Verdict::kWrongKey)).append(std::string(kProofBytes, '\0'))};
}

Result<ServerHello> read_server_hello(std::string_view hello, std::string_view where) {
  if (hello.size() != kServerHelloBytes || hello.substr(0, kMark.size()) != kMark) {
    return Status(ErrorCode::kCorrupt,
                  fmt::format("another program answers at {}: it does not speak Lockstep's store protocol. Choose "
                              "another port, or check the address",
                              where));
  }
  ServerHello server;
  server.source = static_cast<KeySource>(hello[kMark.size()]);
  server.key_socket = hello.substr(kMark.size() + 1, kSocketNameBytes);
  server.key_socket.resize(std::min(server.key_socket.size(), server.key_socket.find('\0')));
  server.nonce = hello.substr(kMark.size() + 1 + kSocketNameBytes);
  return server;
}

Status check_verdict(std::string_view key, std::string_view place, bool own_key, const ServerHello& server,
                     std::string_view client_nonce, std::string_view verdict, std::string_view where) {
  // An empty key proves nothing: a stranger's server may ask for a key that this process does not have.
  const bool welcome =
      !key.empty() && verdict.size() == kVerdictBytes && verdict[0] == static_cast<char>(Verdict::kWelcome);
  if (welcome && same_bytes(verdict.substr(1), proof(key, place, "server", server.nonce, client_nonce))) return {};
  return wrong_key(server.source, own_key, where);
}

}  // namespace lockstep::comm::handshake
