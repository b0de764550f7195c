// NoForks: keeps the process from being forked in the middle of a library's call.
#pragma once

namespace lockstep {

// While one lives, a fork by another thread waits. For calls of a library that takes locks of its own (OpenSSL,
// look-ups of names): a fork would copy a locked one, and whoever needs it in the child would wait forever. For calls
// that neither fork nor wait for another thread. May be nested.
class NoForks {
 public:
  // kLong: as the look-up of a name in a network that does not answer, which keeps a fork waiting until the resolver
  // gives up. Other long calls may then wait with the fork; brief calls never do.
  enum class Calls { kBrief, kLong };
  explicit NoForks(Calls calls = Calls::kBrief);
  ~NoForks();
  NoForks(const NoForks&) = delete;
  NoForks& operator=(const NoForks&) = delete;
};

}  // namespace lockstep
