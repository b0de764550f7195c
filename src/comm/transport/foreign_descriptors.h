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
// single calls, and what spans more takes only what UCX waits for events with.
class ForeignDescriptors {
 public:
  ForeignDescriptors();
  void take_new() const;
  void take_new_events() const;

 private:
  const std::set<int> before_;
};

// The connections of UCX: those at the port of one of its `listeners`, and those to a port that occurs, as two bytes in
// network order, in one of the `addresses` that it has for peers.
void take_connections(std::span<const int> listeners, std::span<const std::string> addresses);

}  // namespace lockstep::comm
