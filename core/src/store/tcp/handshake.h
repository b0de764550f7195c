// How both sides of a store connection prove that they know the job's key, without sending it, and encrypt what
// follows.
//
//   server -> client   greeting: mark, u8 where the key comes from, 48 bytes name of the key socket. In plain.
//   both               TLS 1.3 with an external key (secure_socket.h): tls_key() of the job's key and the place, which
//                      is the key's identity too. X25519 or P-256 makes the keys of each connection fresh.
//   server -> client   welcome, encrypted: the server counts this client. 16 random digits, the same for all its
//   clients
//
// The place is the server's address as each side sees it (place_of() in socket.h). So a program at another port that
// passes the bytes on to the store convinces neither side, and gets no proven connection.
//
// A store without a job key uses one of its own, which it gives to processes of its user on its machine (key_server.h),
// or the user's key (user_key.h). It says which, for clients that have no job key either.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm::handshake {

inline constexpr std::string_view kMark = "LKSTORE4";
inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kSocketNameBytes = 48;
inline constexpr std::size_t kGreetingBytes = kMark.size() + 1 + kSocketNameBytes;
inline constexpr std::size_t kWelcomeBytes = 16;

// Whoever listens at the store's address gets a proof, and may try keys on it for as long as he likes.
inline constexpr std::size_t kShortestKey = 16;
// kInvalidArgument: it is too short. An empty one is none.
Status check_job_key(std::string_view key);

// Else OpenSSL ends when exit() begins, while the thread of a store still serves other ranks, and a static object may
// still connect. Without effect in a program that has used OpenSSL before.
void keep_openssl_at_exit();
Result<std::string> make_key();
// The key of TLS: HKDF-SHA256 (RFC 5869) of the job's key, with a label and the place.
std::string tls_key(std::string_view key, std::string_view place);
// Empties a key, and overwrites the memory that it was in.
void wipe(std::string& key);

enum class KeySource : std::uint8_t { kStore = 0, kJob = 1, kUser = 2 };

struct Greeting {
  KeySource source = KeySource::kJob;
  std::string key_socket = {};  // with kStore: name of the socket that gives the key
};
std::string to_bytes(const Greeting& greeting);
// kCorrupt: another program. kUnsupported: a store of another release of Lockstep. `where` is the server's address, for
// messages.
Result<Greeting> read_greeting(std::string_view bytes, std::string_view where);

// A server keeps the bytes of a stranger until they are the first message of TLS: so one that sends none, or only
// a part, costs little. How many are missing; nullopt: no client of ours sends these bytes.
inline constexpr std::size_t kLongestHello = 1024;
std::optional<std::size_t> missing_of_hello(std::string_view bytes);

// Why a handshake has failed (SecureSocket::shake_hands). `own_key`: the client has a job key of its own.
Status wrong_place(std::string_view where);
Status wrong_key(KeySource source, bool own_key, std::string_view where);

}  // namespace lockstep::comm::handshake
