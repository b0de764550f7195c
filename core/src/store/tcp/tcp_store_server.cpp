#include <utility>

#include "lockstep/store/tcp_store.h"
#include "store/tcp/server_loop.h"

namespace lockstep::comm {

TcpStoreServer::TcpStoreServer(std::unique_ptr<Loop, LeakInForks> loop) : loop_(std::move(loop)) {}
TcpStoreServer::~TcpStoreServer() = default;

Result<std::unique_ptr<TcpStoreServer>> TcpStoreServer::start(TcpStoreServerOptions options) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto loop, Loop::start(std::move(options)));
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(loop)));
}

const Endpoint& TcpStoreServer::endpoint() const {
  return loop_->endpoint();
}
bool TcpStoreServer::wait_until_idle(Deadline deadline) {
  return loop_->wait_until_idle(deadline);
}
std::size_t TcpStoreServer::num_clients() const {
  return loop_->num_clients();
}

}  // namespace lockstep::comm
