// The transport over UCX: TCP, or RDMA if the machine has it.
//
// All transports of a process on one network interface share a worker of UCX, and one connection to each other process.
// They send active messages of UCX; tagged messages are matched here. UCX_TLS and UCX_NET_DEVICES choose the
// devices. If UCX_NET_DEVICES is not set, UCX uses the interface that is given here.
#pragma once

#include <memory>

#include "net/network_interface.h"
#include "net/port_guard.h"
#include "net/transport.h"

namespace lockstep::comm {

// `interface`: if its name is empty, UCX chooses. `admitted`: the only addresses that can reach the TCP ports that UCX
// opens. `handler` is called from progress().
Result<std::unique_ptr<Transport>> open_ucx(const NetworkInterface& interface, const Admitted& admitted,
                                            ActiveMessageHandler handler);

}  // namespace lockstep::comm
