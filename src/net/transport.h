// Transport: the seam between the collectives and whatever moves bytes between machines.
//
// One object serves one rank of one group. Peers have numbers, which only the caller interprets. There are two kinds of
// traffic, as in UCX: tagged messages, which meet a receive that names their tag, and active messages, which need no
// receive and go to the handler. Nothing moves by itself: progress() moves everything. Not thread-safe: the caller
// holds its lock around every call.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// A message under way. The request and the message's memory must stay where they are until it is done.
struct TransportRequest {
  bool done = true;
  Status status;  // valid once done
};

// An active message that has arrived. `data` is valid only during the call of the handler. A large message stays with
// its sender: then `data` is null, and `handle` is what fetch() or discard() takes.
struct ActiveMessage {
  std::string_view header;
  const void* data = nullptr;
  std::size_t bytes = 0;
  void* handle = nullptr;
};

class Transport {
 public:
  // Active messages up to this size arrive whole.
  static constexpr std::size_t kEagerBytes = std::size_t{64} << 10;

  virtual ~Transport() = default;

  // What a peer needs to connect to this one; any bytes.
  virtual std::string address() const = 0;
  // How it reaches the others, for messages: "ucx tcp on eth0".
  virtual std::string describe() const = 0;
  // Says where a peer is. The connection is made when something is to pass, without waiting for it; that the peer
  // cannot be reached shows in is_lost().
  virtual void introduce(int peer, std::string address) = 0;

  virtual void send(int peer, std::uint64_t tag, const void* data, std::size_t bytes, TransportRequest& request) = 0;
  virtual void receive(int peer, std::uint64_t tag, void* data, std::size_t bytes, TransportRequest& request) = 0;
  // The header (at most 256 bytes) is copied, the data is not.
  virtual void post(int peer, std::string_view header, const void* data, std::size_t bytes,
                    TransportRequest& request) = 0;
  // A large active message needs exactly one of these two calls.
  virtual void fetch(void* handle, void* data, std::size_t bytes, TransportRequest& request) = 0;
  virtual void discard(void* handle) = 0;

  // Moves what can be moved without waiting; whether anything did.
  virtual bool progress() = 0;
  // Says that the caller wants to sleep; false when there is known to be something to move already.
  virtual bool may_sleep() = 0;
  // After may_sleep(): waits until there is something to move, not at all if there is already, at most so long. The
  // caller's lock is not needed.
  virtual void sleep(std::chrono::microseconds limit) const = 0;
  // Something has passed, or was to pass, between this peer and this one.
  virtual bool is_connected(int peer) const = 0;
  // The connection to this peer has broken: nothing more will come from it or reach it.
  virtual bool is_lost(int peer) const = 0;
  // To be called once peers have connected: keeps what they have connected to from programs that this process starts.
  virtual void close_to_programs() = 0;
  // Ends every request, so that the caller may free their memory, and this end of every connection. `gently`: first
  // sends what has been handed over, for at most `limit`. Peers may see the end only when this object is destroyed.
  virtual void close(bool gently, std::chrono::milliseconds limit) = 0;
};

// False: the message is not for this group and is dropped. True for a large one: fetch() or discard() will follow.
using ActiveMessageHandler = std::function<bool(const ActiveMessage&)>;

}  // namespace lockstep::comm
