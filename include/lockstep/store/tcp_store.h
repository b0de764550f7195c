// A store served over TCP: TcpStoreServer holds the values, TcpStore is a client of it.
//
// Both sides prove that they know the job's key (HMAC-SHA256 over fresh random bytes; the key itself never travels)
// before anything else is said. A server that is given no key uses one that processes of its own user alone can get.
// Traffic is not encrypted; store nothing secret.
//
// In a fork of their process both are inert: the server serves on in the parent, and calls of the client are refused
// (kUnsupported).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/base/fork.h"
#include "lockstep/store/endpoint.h"
#include "lockstep/store/limits.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

struct TcpStoreServerOptions {
  // Where to listen: exactly there, not on other interfaces. Port 0: the kernel picks a free one; see endpoint().
  Endpoint listen_at{"127.0.0.1", 0};
  // A listening TCP socket to serve instead (`listen_at` is then ignored); owned by the server.
  Fd listener = {};
  // The job's secret, any bytes. Empty: on a loopback address a fresh one, which processes of the same user on this
  // machine get through a Unix socket (the kernel tells both ends whose the other is); on any other address the user's
  // own, from $XDG_STATE_HOME/lockstep/key or $HOME/.local/state/lockstep/key, which is made when it is not there.
  std::string job_key = {};
  // How long a new connection may take to prove the key.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(10);
  // Connections that have not proven the key yet; one more closes the oldest of them, so a flood cannot lock ranks out
  // (a rank that was in its way tries again). Each costs less than 1 KiB.
  std::size_t max_unproven = 256;
};

// One thread, ended and joined by the destructor, serves any number of clients. Waiting requests are parked, not
// polled. Bytes that are no valid request close the connection they came from and disturb no other.
class TcpStoreServer {
 public:
  // kUnavailable: the address is taken or not this machine's. kInvalidArgument: no key on an address that others reach,
  // and no place for the user's own.
  static Result<std::unique_ptr<TcpStoreServer>> start(TcpStoreServerOptions options);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // The address in use, as numbers, with the real port.
  const Endpoint& endpoint() const;
  std::uint16_t port() const { return endpoint().port; }

  // Blocks until no client is connected any more: those who have left closed, those who died were closed by their
  // system. False when the deadline passes first.
  bool wait_until_idle(Deadline deadline);
  // Clients connected now, not counting those that have not proven the key.
  std::size_t num_clients() const;

 private:
  class Loop;
  explicit TcpStoreServer(std::unique_ptr<Loop, LeakInForks> loop);
  std::unique_ptr<Loop, LeakInForks> loop_;
};

struct TcpStoreOptions {
  Endpoint server = {};
  std::string job_key = {};  // the server's; empty: whatever the server has instead, if this user can get it
  // For requests without a deadline of their own; a server that is silent for longer counts as lost, and gets little
  // time for the next ones, until it answers again.
  std::chrono::milliseconds request_timeout = std::chrono::minutes(1);
};

// Thread-safe; each thread that is in a call uses a connection of its own, and idle ones are kept for the next call.
//
// Errors: kUnavailable at once, with the address, when the server is gone (nothing is tried twice: an add might have
// happened); kTimeout as for every store; kInvalidArgument above the limits in limits.h.
class TcpStore final : public Store {
 public:
  // Tries again, ever less often (up to once a second), until the server answers or the deadline passes; the error then
  // says how often and what happened last. A wrong key (kPermission) and a foreign program at that address
  // (kCorrupt) end it at once.
  static Result<std::shared_ptr<TcpStore>> connect(TcpStoreOptions options, Deadline deadline);
  ~TcpStore() override;

  // Leaves the server: closes every connection; calls under way and later ones fail with kUnavailable.
  void close();

  Status set(std::string_view key, std::string_view value) override;
  Status set_by(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<Bytes> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override;
  Result<Bytes> compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  Status append(std::string_view key, std::string_view value) override;
  Status wait(std::span<const std::string> keys, Deadline deadline) override;
  Result<bool> check(std::span<const std::string> keys) override;
  Result<bool> delete_key(std::string_view key) override;
  Result<std::int64_t> num_keys() override;
  std::string local_address() const override;
  Status multi_set(std::span<const std::string> keys, std::span<const Bytes> values) override;
  Result<std::vector<Bytes>> multi_get(std::span<const std::string> keys, Deadline deadline) override;

 private:
  class Connections;
  explicit TcpStore(std::unique_ptr<Connections, LeakInForks> connections);
  std::unique_ptr<Connections, LeakInForks> connections_;
};

}  // namespace lockstep::comm
