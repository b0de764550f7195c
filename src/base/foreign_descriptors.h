// Descriptors that UCX opens. It opens them without O_CLOEXEC: a program that a rank starts would hold the rank's
// connections, and so would a rank that replaces its program, and no other machine would notice its end. So they are
// found, closed to programs, and TCP sockets among them kept from forks of this process as well.
#pragma once

#include <set>
#include <span>
#include <string>

namespace lockstep::comm {

std::set<int> own_descriptors();

// Takes for UCX's what has come since it was made. Another thread may have opened something meanwhile, so this is for
// single calls; what spans more looks closer.
class ForeignDescriptors {
 public:
  ForeignDescriptors();
  void take_new() const;
  // What UCX waits for events with, and its connections: those at the port of one of its `listeners`, and those to a
  // port that occurs, as two bytes in network order, in one of the `addresses` that it has for peers.
  void take_connected(std::span<const int> listeners, std::span<const std::string> addresses) const;

 private:
  const std::set<int> before_;
};

}  // namespace lockstep::comm
