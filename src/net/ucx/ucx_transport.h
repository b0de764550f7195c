// The transport over UCX: TCP, or RDMA where the machine has it.
//
// Sends and receives are UCX's tagged messages, posts its active messages. Which devices are used: what UCX_TLS and
// UCX_NET_DEVICES say; where they are not set, the interface given here.
#pragma once

#include <memory>

#include "net/network_interface.h"
#include "net/port_guard.h"
#include "net/transport.h"

namespace lockstep::comm {

// `interface`: empty: UCX chooses. `admitted`: who alone reaches the TCP ports that UCX opens. `handler` is called from
// progress().
Result<std::unique_ptr<Transport>> open_ucx(const NetworkInterface& interface, const Admitted& admitted,
                                            ActiveMessageHandler handler);

}  // namespace lockstep::comm
