// A store served over TCP: TcpStoreServer holds the values, TcpStore is a client of it.
//
// All traffic is encrypted: TLS 1.3, with a key from the job's key instead of certificates. So both sides prove first
// that they know the job's key, which is never sent, and that they mean the same address and port. A server without a
// job key uses a key that only processes of its own user can get.
//
// In a fork of their process both are inert: the server continues in the parent, and the client refuses calls
// (kUnsupported).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/base/fork.h"
#include "lockstep/store/endpoint.h"
#include "lockstep/store/limits.h"
#include "lockstep/store/store.h"

namespace lockstep::comm {

struct TcpStoreServerOptions {
  // Listens at this address only. If it is this machine's own name, and /etc/hosts gives this name a loopback address,
  // listens at all addresses. Port 0: the kernel picks a port, which endpoint() returns.
  Endpoint listen_at{"127.0.0.1", 0};
  // A listening TCP socket to serve instead (`listen_at` is then ignored); owned by the server.
  Fd listener = {};
  // The job's secret: at least 16 bytes, of any values. Empty: on a loopback address a fresh key, which processes
  // of the same user on this machine get through a Unix socket (the kernel tells each end the user of the other end).
  // On any other address the user's own key, from $XDG_STATE_HOME/lockstep/key or $HOME/.local/state/lockstep/key,
  // which is made if missing.
  std::string job_key = {};
  // How long a new connection may take to prove the key.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(10);
  // The largest number of open connections that have not proven the key. A further connection closes the oldest of
  // them, so that a flood cannot lock ranks out (a rank whose connection is closed tries again). At most a quarter of
  // the descriptors that the process may have (ulimit -n) at the start. Each connection costs less than 2 KiB until it
  // has sent a hello that shows knowledge of the key, and the memory of an OpenSSL handshake after that.
  std::size_t max_unproven = 256;
  // A second address at which clients reach the server, where addresses are translated on the way (a Kubernetes
  // service).
  std::optional<Endpoint> reached_at = {};
};

// One thread, which the destructor ends and joins, serves any number of clients. A request that waits for a key costs
// no time until the key is set. Bytes that are not a valid request close their connection and no other.
class TcpStoreServer {
 public:
  // kUnavailable: the address is taken, or is not an address of this machine. kInvalidArgument: other machines can
  // reach the address, there is no job key, and no place for the user's own key; or the job key is too short.
  static Result<std::unique_ptr<TcpStoreServer>> start(TcpStoreServerOptions options);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // The address in use, as numbers, with the real port.
  const Endpoint& endpoint() const;
  std::uint16_t port() const { return endpoint().port; }

  // Blocks until no client is connected any more; the system closes the connections of clients that died. False when
  // the deadline passes first.
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
  std::string job_key = {};  // the server's job key; empty: the server's own key, if this user can get it
  // For requests without a deadline of their own. A server that is silent for longer counts as lost: until it answers
  // again, the next requests wait only briefly.
  std::chrono::milliseconds request_timeout = std::chrono::minutes(1);
  // Whether connect() tries again. False: where nobody listens, and where the server ends, connect() fails at once.
  bool tries_again = true;
};

// Thread-safe. Each call uses a connection of its own; idle connections are kept for later calls.
//
// Errors: kUnavailable at once, with the address, when the server is gone (no request is repeated: an add might have
// happened), also when another one has taken its place; kTimeout as for every store; kInvalidArgument above the limits
// in limits.h. Where the address accepts connections and closes them (a flooded server, a proxy of a server that is
// gone), a call tries again for TcpStoreOptions::request_timeout at most, then fails with kUnavailable.
class TcpStore final : public Store {
 public:
  // Tries again until the server answers or the deadline passes, with growing pauses of up to a second. The error says
  // how often it tried, and the last failure. A wrong key (kPermission), another release of Lockstep (kUnsupported) and
  // a foreign program at that address (kCorrupt) are errors at once. So is every failure without
  // TcpStoreOptions::tries_again.
  static Result<std::shared_ptr<TcpStore>> connect(TcpStoreOptions options, Deadline deadline);
  ~TcpStore() override;

  // Closes every connection; calls under way and later ones fail with kUnavailable.
  void close();

  std::string local_address() const override;

  // Adds a value to the end of a list: sets "list/N", where N counts from 1, and returns N. The values of several
  // clients get different numbers, without gaps.
  Result<std::int64_t> push(std::string_view list, std::string_view value);
  // Deletes all keys that begin with `prefix`; returns how many.
  Result<std::int64_t> delete_prefix(std::string_view prefix);

 private:
  class Connections;
  explicit TcpStore(std::unique_ptr<Connections, LeakInForks> connections);
  Result<StoreAnswer> answer(StoreCall call) override;
  Result<StoreAnswer> set_all(StoreCall call);
  Result<StoreAnswer> get_all(StoreCall call);

  std::unique_ptr<Connections, LeakInForks> connections_;
};

}  // namespace lockstep::comm
