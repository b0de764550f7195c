// Descriptors that UCX opens. It opens them without O_CLOEXEC, so a program that a rank starts, or that replaces the
// rank (exec), would hold the rank's connections, and no other machine would notice the rank's end. Therefore this code
// finds them and sets O_CLOEXEC. It also closes TCP sockets among them in forks of this process.
#pragma once

#include <set>
#include <span>
#include <string>

namespace lockstep {

// All descriptors of this process.
std::set<int> own_descriptors();

// Remembers the descriptors that exist when it is made; those of UCX are among later ones.
class ForeignDescriptors {
 public:
  ForeignDescriptors();
  // Takes all new ones. Another thread may have opened some of them, so use it around a single call only.
  void take_new() const;
  // Takes the new ones that UCX waits for events with, and its connections: those at the port of one of its
  // `listeners`, and those to a port that occurs, as two bytes in network order, in one of its `addresses` of peers.
  void take_connected(std::span<const int> listeners, std::span<const std::string> addresses) const;

 private:
  const std::set<int> before_;
};

}  // namespace lockstep
