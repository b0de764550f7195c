// Transport: the seam between the collectives and whatever moves bytes between machines.
//
// One object serves one rank of one group. Peers are numbered; what the numbers mean is the caller's business. Two
// kinds of traffic: parcels, which meet a receive that names their tag, and letters, which nobody has to expect and
// which go to the handler. Nothing moves by itself: progress() moves everything. Not thread-safe: the caller's lock is
// held around every call.
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

// A parcel or letter under way. It stays where it is, and its memory too, until it is done.
struct Parcel {
  bool done = true;
  Status status;  // valid once done
};

// A letter that has arrived. `data` is valid during the call of the handler only; a large letter's bytes are still with
// its sender (`data` is null), and `ticket` fetches them.
struct Letter {
  std::string_view header;
  const void* data = nullptr;
  std::size_t bytes = 0;
  void* ticket = nullptr;
};

class Transport {
 public:
  // Letters up to this size arrive whole.
  static constexpr std::size_t kLargeLetterBytes = std::size_t{64} << 10;

  virtual ~Transport() = default;

  // What a peer needs to connect to this one; any bytes.
  virtual std::string address() const = 0;
  // How it reaches the others, for messages: "ucx tcp on eth0".
  virtual std::string describe() const = 0;
  // Says where a peer is. The connection is made when something is to pass, without waiting for it; that the peer
  // cannot be reached shows in is_lost().
  virtual void introduce(int peer, std::string address) = 0;

  virtual void send(int peer, std::uint64_t tag, const void* data, std::size_t bytes, Parcel& parcel) = 0;
  virtual void receive(int peer, std::uint64_t tag, void* data, std::size_t bytes, Parcel& parcel) = 0;
  // The header (at most 256 bytes) is copied, the data is not.
  virtual void post(int peer, std::string_view header, const void* data, std::size_t bytes, Parcel& parcel) = 0;
  // What becomes of a large letter: one of the two, once.
  virtual void fetch(void* ticket, void* data, std::size_t bytes, Parcel& parcel) = 0;
  virtual void discard(void* ticket) = 0;

  // Moves what can be moved without waiting; whether anything did.
  virtual bool progress() = 0;
  // Says that the caller wants to sleep; false when there is something to move already.
  virtual bool may_sleep() = 0;
  // After may_sleep(): waits until there is something to move, at most so long. The caller's lock is not needed.
  virtual void sleep(std::chrono::microseconds limit) const = 0;
  // Something has passed, or was to pass, between this peer and this one.
  virtual bool is_connected(int peer) const = 0;
  // The connection to this peer has broken: nothing more will come from it or reach it.
  virtual bool is_lost(int peer) const = 0;
  // To be called once peers have connected: keeps what they have connected to from programs that this process starts.
  virtual void close_to_programs() = 0;
  // Ends everything under way, so that memory given to parcels is free, and every connection. `gently`: what has been
  // handed over is still sent, for at most `limit`.
  virtual void close(bool gently, std::chrono::milliseconds limit) = 0;
};

// False: the letter is not for this group, forget it. True for a large one: fetch() or discard() will follow.
using LetterHandler = std::function<bool(const Letter&)>;

}  // namespace lockstep::comm
