// The state behind an Operation.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "lockstep/base/fork.h"
#include "lockstep/base/status.h"
#include "lockstep/engine/communicator.h"

namespace lockstep::comm {

class Group;

// A send or receive that this rank has called.
struct Transfer {
  bool is_send = false;
  int peer = kAnySource;
  std::int64_t tag = 0;
  ConstPiece source;  // of a send
  Piece target;       // of a receive
  bool over = false;
  Status status;
  int from = -1;                          // of a receive that is over: the sender
  Operation::State* operation = nullptr;  // that it belongs to; null: a blocking call's
};

// What a wait remembers from one check for failures to the next.
struct Watch {
  std::uint64_t progress = 0;
  std::chrono::steady_clock::time_point progressed = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point checked = progressed;
};

// A started operation: a transfer, or a collective, which each engine adds in a derived class.
class Operation::State {
 public:
  explicit State(std::shared_ptr<Group> its_group) : group(std::move(its_group)) {}
  virtual ~State() = default;

  virtual bool is_over() const { return over.load(std::memory_order_acquire); }
  virtual std::uint64_t sequence() const { return 0; }  // of a collective

  const Origin origin;
  const std::shared_ptr<Group> group;
  Transfer transfer;
  Communicator::KeepAlive keep_alive;
  Watch watch;  // used by test(), under the group's lock
  std::atomic<bool> over{false};
  Status status;  // valid once over
};

}  // namespace lockstep::comm
