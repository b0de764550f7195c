// NoForks: keeps the process from being forked in the middle of a library's call.
#pragma once

namespace lockstep {

// While one lives, a fork by another thread waits. For calls of a library that takes locks of its own (OpenSSL,
// look-ups of names): a fork would copy a locked one, and whoever needs it in the child would wait forever. For calls
// that neither fork nor wait for another thread. They should be brief: a look-up in a network that does not answer
// keeps a fork waiting until the resolver gives up. May be nested.
class NoForks {
 public:
  NoForks();
  ~NoForks();
  NoForks(const NoForks&) = delete;
  NoForks& operator=(const NoForks&) = delete;
};

}  // namespace lockstep
