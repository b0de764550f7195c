// Descriptors that UCX opens. It opens them without O_CLOEXEC, so a program that a rank starts, or that replaces the
// rank (exec), would hold the rank's connections, and no other machine would notice the rank's end. Therefore this code
// finds them and sets O_CLOEXEC. It also closes TCP sockets among them in forks of this process.
//
// UCX waits for events of everything that it opens: the worker for its connections, UCX's own thread for new ones. So
// the kernel's lists of what an epoll descriptor watches lead from the worker's event descriptor, and from the sockets
// that it listens on, to all others, and to none of the program.
#pragma once

#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

// All descriptors of this process.
std::set<int> own_descriptors();

// Takes what belongs to the UCX worker whose event descriptor this is, and returns the sockets on which the worker
// listens. `known`: these sockets; if empty, they are those that UCX's thread watches and whose port, two bytes in
// network order, occurs in the worker's `address`.
std::vector<int> take_worker_descriptors(int event_fd, std::span<const int> known, std::string_view address);

// Takes the connections that the worker has opened or accepted since.
void take_worker_connections(int event_fd);

// Shuts down the worker's connections to machines that are out of reach, so that UCX reports them as broken. While data
// are not acknowledged the kernel sends no keepalive probes, and tries for a quarter of an hour. TCP_USER_TIMEOUT would
// also end the connection to a process that is stopped, once its window is full.
void shut_down_cut_connections(int event_fd);

}  // namespace lockstep
