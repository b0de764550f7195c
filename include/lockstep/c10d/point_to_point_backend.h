// Point to point as this library's own backends (lockstep, mpi) have it beyond c10d's: every message has a timeout of
// its own and can be checked before anything is started. lockstep/c10d/collectives.h is made of it.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep {

class PointToPointBackend {
 public:
  struct Message {
    at::Tensor tensor;
    int peer = 0;                           // a group rank; for receives also kAnySource, -1
    int tag = 0;                            // not negative
    std::chrono::milliseconds timeout{-1};  // not positive: the group's
  };

  virtual ~PointToPointBackend() = default;

  // Throw ArgumentError for what the calls below would refuse.
  virtual void check_send(const Message& message) const = 0;
  virtual void check_receive(const Message& message) const = 0;

  // The timeout counts from here, for Work::wait() and the Work's future.
  virtual c10::intrusive_ptr<c10d::Work> send_async(const Message& message) = 0;
  // Work::sourceRank tells the sender.
  virtual c10::intrusive_ptr<c10d::Work> receive_async(const Message& message) = 0;

  virtual void send_blocking(const Message& message) { send_async(message)->wait(); }
  // Answers the sender.
  virtual int receive_blocking(const Message& message) {
    const auto work = receive_async(message);
    work->wait();
    return work->sourceRank();
  }
};

}  // namespace lockstep
