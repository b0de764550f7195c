// A port for a server that starts later, or for one that never starts.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <stdexcept>

#include "lockstep/base/fd.h"

namespace lockstep::test {

// On the loopback interface. The kernel gives it to nobody while this lives, but a program that names it (and sets
// SO_REUSEADDR) may listen there; until then connections are refused.
class HeldPort {
 public:
  HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (!socket_.valid() || ::bind(socket_.get(), generic, size) != 0 ||
        ::getsockname(socket_.get(), generic, &size) != 0) {
      throw std::runtime_error("cannot get a port");
    }
    number_ = ntohs(address.sin_port);
  }
  std::uint16_t number() const { return number_; }

 private:
  Fd socket_;
  std::uint16_t number_ = 0;
};

}  // namespace lockstep::test
