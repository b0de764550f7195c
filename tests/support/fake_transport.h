// A network in memory: any number of transports in one process, joined by a switch that tests can disturb. It keeps the
// promises of net/transport.h (core/tests/net runs the same cases over it and over UCX), and is stricter than UCX: no
// request ends within the call that makes it, and data is read only when its sender calls progress().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "net/transport.h"

namespace lockstep::test {

// Thread-safe; each transport is for one thread at a time, as every transport is. The transports may outlive it.
class FakeSwitch {
 public:
  FakeSwitch();

  std::unique_ptr<comm::Transport> open(comm::ActiveMessageHandler handler) const;

  // Faults. A transport is named by its address().
  // Delays everything that `from` sends to `to`, its end included, until release().
  void hold(const std::string& from, const std::string& to) const;
  void release(const std::string& from, const std::string& to) const;
  // From now on messages of different senders arrive in a random order. Those of one sender keep theirs.
  void shuffle(std::uint64_t seed) const;
  // Takes the transport off the network, with all that it has sent and that has not arrived, as when its machine loses
  // power. It and its peers lose their connections.
  void lose(const std::string& address) const;

  struct Network;

 private:
  std::shared_ptr<Network> network_;
};

}  // namespace lockstep::test
