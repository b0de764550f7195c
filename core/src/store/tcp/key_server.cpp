#include "store/tcp/key_server.h"

#include <array>
#include <chrono>
#include <span>

#include "store/tcp/handshake.h"
#include "store/tcp/unix_socket.h"

namespace lockstep::comm {
namespace {

constexpr int kBacklog = 128;
constexpr int kServedAtOnce = 64;  // then the store's clients get their turn

}  // namespace

Result<KeyServer> KeyServer::open() {
  LOCKSTEP_ASSIGN_OR_RETURN(std::string name, random_socket_name("lockstep-key"));
  LOCKSTEP_ASSIGN_OR_RETURN(std::string key, handshake::make_key());
  LOCKSTEP_ASSIGN_OR_RETURN(Fd listener, listen_unix(name, kBacklog));
  return KeyServer(std::move(name), std::move(key), std::move(listener));
}

Status KeyServer::serve() const {
  for (int served = 0; served < kServedAtOnce; ++served) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Fd client, accept_unix(listener_.get()));
    if (!client.valid()) return {};
    if (!check_same_user(client.get()).ok()) continue;
    (void)send_message(client.get(), std::as_bytes(std::span(key_)), {}, Deadline::after(std::chrono::seconds(0)));
  }
  return {};
}

Result<std::string> fetch_key(const std::string& name, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Fd socket, connect_unix(name, deadline));
  LOCKSTEP_RETURN_IF_ERROR(check_same_user(socket.get()));
  std::string key(handshake::kKeyBytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(receive_message(socket.get(), std::as_writable_bytes(std::span(key)), nullptr, deadline));
  return key;
}

}  // namespace lockstep::comm
