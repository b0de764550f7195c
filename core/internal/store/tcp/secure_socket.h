// SecureSocket: a TCP connection over which both sides have proven that they know one key. All its bytes are encrypted
// and signed: TLS 1.3 with an external key, without certificates.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"

namespace lockstep::comm {

// For one thread at a time. Nothing here raises SIGPIPE. Destroying it only closes the socket, in a fork too.
class SecureSocket {
 public:
  SecureSocket();
  ~SecureSocket();
  SecureSocket(SecureSocket&& other) noexcept;
  SecureSocket& operator=(SecureSocket&& other) noexcept;

  // client() and server() make the two ends of a connected, non-blocking socket, before the handshake. `key` is the
  // job's key. A place is a server's address (place_of() in socket.h). The handshake fails unless the client's place is
  // among the server's places.
  static Result<SecureSocket> client(Fd fd, std::string key, std::string place);
  // `hello`: what has been read from the socket.
  static Result<SecureSocket> server(Fd fd, std::string key, std::vector<std::string> places, std::string hello);

  bool valid() const { return state_ != nullptr; }
  int fd() const;

  // Goes on with the handshake, without waiting. True: it is done. kPermission: the sides disagree about the key;
  // kMismatch: about the place, as the client learns; kUnsupported: about TLS. In these cases the other side has been
  // told. kCorrupt: it does not speak TLS. kUnavailable: it has closed.
  Result<bool> shake_hands();
  // Goes on with the handshake until it is done.
  Status shake_hands(Deadline deadline);

  // At most as many bytes as there is room for, without waiting. 0: nothing is there now. With room for 16 KiB nothing
  // that the socket has given stays behind, so the socket's readability says when there is more. kUnavailable: the
  // other side has closed. kCorrupt: somebody has changed the bytes on the way, or the other side has begun another
  // handshake (a change of keys), which nobody here does.
  Result<std::size_t> read_some(std::span<char> room);
  // 0: there is no room now. The next call must begin with the same bytes.
  Result<std::size_t> write_some(std::string_view bytes);

  // kUnavailable when the other side has closed, kTimeout at the deadline.
  Status send_all(std::string_view bytes, Deadline deadline);
  Status receive_all(std::string& bytes, Deadline deadline);  // fills all of `bytes`

 private:
  struct State;
  explicit SecureSocket(std::unique_ptr<State> state);
  Status wait(Deadline deadline) const;

  std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
