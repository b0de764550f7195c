// NoForks: keeps the process from being forked in the middle of a library's call.
#pragma once

namespace lockstep {

// While one lives, a fork by another thread waits. For calls of a library that takes locks of its own (OpenSSL): a fork
// would copy a locked one, and whoever needs it in the child would wait forever. For brief calls that neither fork nor
// wait for another thread. May be nested.
class NoForks {
 public:
  NoForks();
  ~NoForks();
  NoForks(const NoForks&) = delete;
  NoForks& operator=(const NoForks&) = delete;
};

}  // namespace lockstep
