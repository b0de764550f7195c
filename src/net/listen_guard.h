// A say in what a library's sockets do before they listen, without touching the library.
#pragma once

#include <functional>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// Runs `work` in a thread of its own. Each time that it is about to listen at a socket, `prepare` is called with the
// descriptor, in this thread, and the other one waits until it has returned. True: the kernel can do so (seccomp user
// notification, Linux 5.5, and no other watcher of this process, as some containers have); false: `work` was run all
// the same. Threads that `work` starts and leaves behind may not listen any more afterwards.
Result<bool> run_watching_listen(const std::function<void()>& work, const std::function<void(int socket)>& prepare);

}  // namespace lockstep::comm
