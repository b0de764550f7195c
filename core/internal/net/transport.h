// Transport: the interface between the collectives and what moves bytes between machines.
//
// One object serves one rank of one group. Peers have numbers, which only the caller interprets. There are two kinds of
// messages, as in UCX: tagged messages meet a receive that names their tag; active messages need no receive and go to
// the handler. A request ends only inside the call that makes it, progress() and close(), and the handler is called
// only by progress(). Not thread-safe: the caller holds its lock around every call. Different objects may be used by
// different threads at the same time.
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

// A send or receive under way. This object and the message's memory must stay where they are until it is done.
struct TransportRequest {
  bool done = true;
  Status status;  // valid once done
};

// An active message that has arrived. A large message stays with its sender: then `data` is empty, and `handle` is the
// argument of fetch() or discard().
struct ActiveMessage {
  std::string header;
  std::string data;
  std::size_t bytes = 0;
  void* handle = nullptr;
};

class Transport {
 public:
  // Active messages up to this size arrive whole.
  static constexpr std::size_t kEagerBytes = std::size_t{64} << 10;

  virtual ~Transport() = default;

  // What a peer needs to connect to this one. It may contain any bytes.
  virtual std::string address() const = 0;
  // How it reaches the others, for error texts: "UCX 1.13.1 on eth0".
  virtual std::string describe() const = 0;
  // Says where a peer is. The first message opens the connection, without waiting for it. If the peer cannot be
  // reached, is_lost() says so later.
  virtual void introduce(int peer, std::string address) = 0;

  virtual void send(int peer, std::uint64_t tag, const void* data, std::size_t bytes, TransportRequest& request) = 0;
  // kMismatch if the message has another length than `bytes`; then nothing is written.
  virtual void receive(int peer, std::uint64_t tag, void* data, std::size_t bytes, TransportRequest& request) = 0;
  // Sends an active message. The header (at most 256 bytes) is copied, the data is not.
  virtual void post(int peer, std::string_view header, const void* data, std::size_t bytes,
                    TransportRequest& request) = 0;
  // A large active message needs exactly one of these two calls.
  virtual void fetch(void* handle, void* data, std::size_t bytes, TransportRequest& request) = 0;
  virtual void discard(void* handle) = 0;

  // Moves what is under way, without waiting. Whether anything moved.
  virtual bool progress() = 0;
  // Prepares a sleep. False: do not sleep, because there is something to move.
  virtual bool may_sleep() = 0;
  // After may_sleep(): waits until there is something to move, at most for `limit`; it does not wait if there is
  // already. The caller need not hold its lock.
  virtual void sleep(std::chrono::microseconds limit) = 0;
  // A connection to this peer has been opened.
  virtual bool is_connected(int peer) const = 0;
  // The peer has closed, or the connection to it has broken: no more messages will come from it or reach it.
  virtual bool is_lost(int peer) const = 0;
  // Finds connections to machines that are out of reach, which is_lost() tells later. Call this now and then while
  // nothing moves.
  virtual void look_for_cut_links() = 0;
  // Call this once peers have connected: programs that this process starts then do not inherit the connections.
  virtual void close_to_programs() = 0;
  // Ends every request, so that the caller may free its memory, and this end of every connection. `gently`: first sends
  // what is under way, for at most `limit`. Peers may see the end only when this object is destroyed.
  virtual void close(bool gently, std::chrono::milliseconds limit) = 0;
};

// Takes an active message. False: it is not for this group and is dropped. True for a large message: the handler's
// owner will call fetch() or discard().
using ActiveMessageHandler = std::function<bool(ActiveMessage)>;

}  // namespace lockstep::comm
