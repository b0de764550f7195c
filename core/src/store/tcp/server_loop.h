// The thread of a TcpStoreServer: connections, their buffers and the handshake. StoreService handles the requests.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/store/tcp_store.h"
#include "store/tcp/handshake.h"
#include "store/tcp/key_server.h"
#include "store/tcp/secure_socket.h"
#include "store/tcp/store_service.h"

namespace lockstep::comm {

class TcpStoreServer::Loop {
 public:
  static Result<std::unique_ptr<Loop, LeakInForks>> start(TcpStoreServerOptions options);
  ~Loop();

  const Endpoint& endpoint() const { return endpoint_; }
  bool wait_until_idle(Deadline deadline);
  std::size_t num_clients();

 private:
  using ClientId = StoreService::ClientId;

  struct Connection {
    Fd fd;                // until the client's hello is there
    SecureSocket socket;  // from then on
    bool proven = false;
    bool busy = false;   // a request waits or its answer is not yet sent: no other may come
    bool ended = false;  // the client has closed: its earlier requests count, no more will come
    Deadline handshake_deadline = Deadline::never();
    std::string in;
    std::string out;
    std::size_t sent = 0;
    bool is_heartbeat = false;  // `out` is nothing else
    bool wants_write = false;   // as registered with epoll

    int number() const { return fd.valid() ? fd.get() : socket.fd(); }
  };

  // The key that clients have to know.
  struct Key {
    std::string bytes;
    handshake::KeySource source = handshake::KeySource::kJob;
    std::optional<KeyServer> server = {};  // with KeySource::kStore
    std::string welcome = {};              // to whoever knows it
  };
  static Result<Key> choose_key(const TcpStoreServerOptions& options, const Endpoint& endpoint);

  Loop(TcpStoreServerOptions options, Key key, Endpoint endpoint, Fd epoll, Fd stop);

  void run();
  Deadline next_due() const;
  void accept_all();
  void serve_keys();
  void pause_accepting();
  void set_accepting(std::uint32_t events);
  void admit(Fd fd);
  void make_room();
  void on_event(ClientId id, std::uint32_t events);
  // False: close it.
  bool read_some(Connection& connection);
  bool take_hello(Connection& connection);
  bool shake_hands(ClientId id, Connection& connection);
  bool take_frame(ClientId id, Connection& connection);
  void queue(ClientId id, std::string bytes);
  void flush_queued();
  bool flush(ClientId id, Connection& connection);  // false: close it
  void expire_handshakes();
  void send_heartbeats();
  void close(ClientId id);
  void watch(int fd, ClientId id, std::uint32_t events, int operation);

  const Origin origin_;
  const TcpStoreServerOptions options_;
  const Key key_;
  std::vector<std::string> other_places_;  // of options_.reached_at; constant once the thread runs
  const Endpoint endpoint_;
  const Fd epoll_;
  const Fd stop_;
  StoreService service_;
  std::unordered_map<ClientId, Connection> connections_;
  std::set<ClientId> unproven_;  // ids grow, so the first is the oldest
  std::set<ClientId> queued_;    // have bytes to send since the last flush
  std::set<ClientId> watched_;   // get heartbeats
  Deadline next_heartbeat_ = Deadline::never();
  ClientId next_id_;
  Deadline accept_again_ = Deadline::never();  // while accept is off because no descriptors are left
  Deadline warn_again_ = Deadline::after(std::chrono::nanoseconds(0));

  Mutex mutex_;
  CondVar idle_;
  std::size_t num_clients_ LOCKSTEP_GUARDED_BY(mutex_) = 0;

  std::jthread thread_;  // last: it starts when all other members exist; not joinable if it could not start
};

}  // namespace lockstep::comm
