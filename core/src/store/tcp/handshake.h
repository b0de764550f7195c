// How both sides of a store connection prove that they know the job's key, without sending it.
//
//   server -> client   mark, u8 where the key comes from, 48 bytes name of the key socket, 32 random bytes S
//   client -> server   mark, 32 random bytes C, HMAC-SHA256(key, "client" S C P)
//   server -> client   u8 verdict, HMAC-SHA256(key, "server" S C P)    (zeros when the verdict is "wrong key")
//
// P is the place of the server as each side sees it (place_of() in socket.h). So a program at another port that passes
// the bytes on to the store convinces neither side, and gets no proven connection.
//
// Each side contributes fresh random bytes, so a recorded exchange cannot be replayed. The labels differ, so one side's
// proof cannot be sent back to it. Later messages are neither encrypted nor signed: the key keeps strangers and other
// jobs out, but not an attacker who can alter packets between the machines.
//
// A store without a job key uses one of its own, which it gives to processes of its user on its machine (key_server.h),
// or the user's key (user_key.h). It says which, for clients that have no job key either.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm::handshake {

inline constexpr std::string_view kMark = "LKSTORE2";
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kSocketNameBytes = 48;
inline constexpr std::size_t kServerHelloBytes = kMark.size() + 1 + kSocketNameBytes + kNonceBytes;
inline constexpr std::size_t kClientHelloBytes = kMark.size() + kNonceBytes + kProofBytes;
inline constexpr std::size_t kVerdictBytes = 1 + kProofBytes;

// Whoever listens at the store's address gets a proof, and may try keys on it for as long as he likes.
inline constexpr std::size_t kShortestKey = 16;
// kInvalidArgument: it is too short. An empty one is none.
Status check_job_key(std::string_view key);

Result<std::string> make_nonce();

enum class KeySource : std::uint8_t { kStore = 0, kJob = 1, kUser = 2 };

struct ServerHello {
  KeySource source = KeySource::kJob;
  std::string key_socket;  // with kStore: name of the socket that gives the key
  std::string nonce;
};
std::string server_hello(const ServerHello& hello);
std::string client_hello(std::string_view key, std::string_view place, std::string_view server_nonce,
                         std::string_view client_nonce);

enum class Verdict : std::uint8_t { kWelcome = 1, kWrongKey = 2, kNotOurs = 3 };

struct Judgement {
  Verdict verdict;
  std::string answer;  // what to send; empty for kNotOurs
};
// How the server judges a client's hello. `places`: where clients may have reached it.
Judgement judge(std::string_view key, std::span<const std::string> places, std::string_view server_nonce,
                std::string_view hello);

// How the client reads the server's hello and verdict. `where` is the server's address, for messages; `own_key`: the
// client has a job key of its own.
Result<ServerHello> read_server_hello(std::string_view hello, std::string_view where);
Status check_verdict(std::string_view key, std::string_view place, bool own_key, const ServerHello& server,
                     std::string_view client_nonce, std::string_view verdict, std::string_view where);

}  // namespace lockstep::comm::handshake
