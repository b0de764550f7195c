// Port guard: closes TCP sockets on which a library listens to all machines but those of the group. The kernel drops
// what other machines send there, before the library sees it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// Which addresses may reach a port.
struct Admitted {
  std::vector<std::string> addresses;  // IP addresses, as numbers
  bool loopback = false;               // this machine's loopback addresses too
};

// Closes `socket` to all others; it is a TCP socket that listens or is about to. From now on the socket, and
// connections that it accepts, get segments only from admitted addresses. Others get no answer. kInvalidArgument: an
// entry is no address. kUnavailable: too many addresses for the kernel (some hundreds of machines); then the socket is
// open to all, also if it was closed before, so that no admitted machine is kept out.
Status close_to_strangers(int socket, const Admitted& admitted);

// Lets the caller prepare the sockets of a library before they listen, without changes to the library. Runs `work` in a
// new thread. Each time that it is about to listen on a socket, `prepare` is called in this thread with the descriptor,
// and the new thread waits until it has returned. This needs seccomp user notification: Linux 5.5, and no other watcher
// of this process, as in some containers. True: `prepare` was called each time. False: the kernel refused, and `work`
// ran without it. Threads that `work` has left behind cannot listen afterwards.
Result<bool> run_watching_listen(const std::function<void()>& work, const std::function<void(int socket)>& prepare);

}  // namespace lockstep::comm
