// How both sides of a store connection prove that they know the job's key, without sending it.
//
//   server -> client   mark, u8 "has a key", 32 random bytes S
//   client -> server   mark, 32 random bytes C, HMAC-SHA256(key, "client" S C)
//   server -> client   u8 verdict, HMAC-SHA256(key, "server" S C)      (zeros when the verdict is "wrong key")
//
// Each side contributes fresh random bytes, so a recorded exchange cannot be replayed, and the labels differ, so one
// side's proof cannot be sent back to it. What follows is neither encrypted nor signed: the key keeps strangers and
// other jobs out, not somebody who can alter packets between the machines.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm::handshake {

inline constexpr std::string_view kMark = "LKSTORE1";
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kServerHelloBytes = kMark.size() + 1 + kNonceBytes;
inline constexpr std::size_t kClientHelloBytes = kMark.size() + kNonceBytes + kProofBytes;
inline constexpr std::size_t kVerdictBytes = 1 + kProofBytes;

Result<std::string> make_nonce();

std::string server_hello(bool has_key, std::string_view server_nonce);
std::string client_hello(std::string_view key, std::string_view server_nonce, std::string_view client_nonce);

enum class Verdict : std::uint8_t { kWelcome = 1, kWrongKey = 2, kNotOurs = 3 };

struct Judgement {
  Verdict verdict;
  std::string answer;  // what to send; empty for kNotOurs
};
// What the server makes of a client's hello.
Judgement judge(std::string_view key, std::string_view server_nonce, std::string_view hello);

// What the client makes of the server's hello and verdict. `where` is the server's address, for messages.
struct ServerHello {
  bool has_key;
  std::string nonce;
};
Result<ServerHello> read_server_hello(std::string_view hello, std::string_view where);
Status check_verdict(std::string_view key, const ServerHello& server, std::string_view client_nonce,
                     std::string_view verdict, std::string_view where);

}  // namespace lockstep::comm::handshake
