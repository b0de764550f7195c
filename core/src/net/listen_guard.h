// Lets the caller prepare the sockets of a library before they listen, without changes to the library.
#pragma once

#include <functional>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// Runs `work` in a new thread. Each time that it is about to listen on a socket, `prepare` is called in this thread
// with the descriptor, and the new thread waits until it has returned. This needs seccomp user notification: Linux 5.5,
// and no other watcher of this process, as in some containers. True: `prepare` was called each time. False: the kernel
// refused, and `work` ran without it. Threads that `work` has left behind cannot listen afterwards.
Result<bool> run_watching_listen(const std::function<void()>& work, const std::function<void(int socket)>& prepare);

}  // namespace lockstep::comm
