// How a rank of a group that spans machines opens its transport: through which interface, and whom it admits.
#pragma once

#include "engine/core/topology.h"
#include "lockstep/store/store.h"
#include "net/port_guard.h"
#include "net/transport.h"

namespace lockstep::comm {

// Admits the addresses of the other machines. This machine's own addresses are admitted only if another "machine" of
// the group shares them (by LOCKSTEP_MACHINE, or as another user), because any user here can use them.
Admitted admitted_to(const Topology& topology, int rank);

// Opens the port of `rank`, on the interface that leads to the store if there is one.
Result<std::unique_ptr<Transport>> open_transport(const Store& store, const Topology& topology, int rank,
                                                  ActiveMessageHandler handler);

}  // namespace lockstep::comm
