// TCP sockets with deadlines. All are non-blocking and close-on-exec; nothing here raises SIGPIPE.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/status.h"
#include "lockstep/store/endpoint.h"

namespace lockstep::comm {

// Port 0: the kernel picks. At this machine's own name that stands for loopback (address_for_others in base/host.h) it
// listens on all interfaces, because other machines find another address for the name. kUnavailable when the address is
// taken or not this machine's; the message says which.
Result<Fd> listen_at(const Endpoint& endpoint);
// One attempt at each address of the host. kUnavailable when none answers, kTimeout at the deadline.
Result<Fd> connect_to(const Endpoint& endpoint, Deadline deadline);
// What the machine of an address says of a port, without a word to whoever listens there. kRefused: the machine lives,
// and nobody listens. kNone: there is no way to it, or no answer. kListens also where this machine answers itself with
// silence, as it does for a stopped process whose queue is full, and where this process cannot ask.
enum class PortAnswer { kListens, kRefused, kNone };
PortAnswer ask_port(const Endpoint& endpoint, Deadline deadline);

// This machine's address, as a number, from which the kernel would send to a host. Nothing is sent.
Result<std::string> address_towards(const std::string& host);

// The address that a socket is bound to or connected to, as numbers.
Result<Endpoint> local_endpoint(int fd);
Result<Endpoint> remote_endpoint(int fd);
bool is_loopback(const Endpoint& numeric);
// The same text on both sides of a connection to a server at this address, and another one for any other server: also
// for one at the same loopback address of another machine or network namespace.
std::string place_of(const Endpoint& numeric);
// All addresses of a name, as numbers.
Result<std::vector<Endpoint>> look_up(const Endpoint& endpoint);
// Sends small messages without delay, and notices the loss of the other machine within about a minute.
void tune(int fd);
// The connection ends when the other machine has been silent for `limit` (1 s at least, or it is left as it is). The
// kernels ask and answer, so a process that is stopped or slow is not lost.
void notice_loss_within(int fd, std::chrono::milliseconds limit);

// kUnavailable when the other side has closed, kTimeout at the deadline.
Status send_all(int fd, std::string_view bytes, Deadline deadline);
Status receive_all(int fd, std::string& bytes, Deadline deadline);  // fills all of `bytes`

}  // namespace lockstep::comm
