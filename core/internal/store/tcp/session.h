// StoreSession: one connection to a TCP store that stays open. Its owner awaits keys without blocking, and the store
// carries out its will when the connection ends, however that happens.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/store/tcp_store.h"
#include "store/tcp/secure_socket.h"

namespace lockstep::comm {

// For one thread.
class StoreSession {
 public:
  // Connects as TcpStore does. kAborted: `interrupt_fd` became readable meanwhile.
  static Result<StoreSession> connect(const TcpStoreOptions& options, Deadline deadline, int interrupt_fd);

  // When this connection ends, the store pushes `value` to `list` (TcpStore::push); nothing if `list` is empty. It ends
  // with this process, and when the store's machine has not heard of this one for `silence` (heartbeat.h), or this one
  // not of the store's for a second more. Kernels answer: a process that is stopped or slow is not lost.
  Status leave_will(std::string_view list, std::string_view value, std::chrono::milliseconds silence);

  // Asks for a key, which take() returns once it exists. One at a time.
  Status ask(std::string_view key);
  // Readable when take() has something.
  int fd() const { return socket_.fd(); }
  // The value that was asked for; nullopt: not yet. Does not block. kUnavailable: the store is gone.
  Result<std::optional<Bytes>> take();

  StoreSession() = default;  // not connected

  // This machine's address and the server's, as numbers.
  const Endpoint& local() const { return local_; }
  const Endpoint& server() const { return server_; }

 private:
  StoreSession(SecureSocket socket, Endpoint local, Endpoint server)
      : socket_(std::move(socket)), local_(std::move(local)), server_(std::move(server)) {}

  // Takes in what has arrived, without waiting. Whether there was anything.
  Result<bool> read_more();

  SecureSocket socket_;
  Endpoint local_;
  Endpoint server_;
  std::string in_;
};

}  // namespace lockstep::comm
