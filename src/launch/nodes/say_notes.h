// Tells the user what the nodes of a job do.
#pragma once

#include "launch/console.h"
#include "launch/nodes/node_link.h"

namespace lockstep::launch {

// Important notes go to stderr, the others to the log.
void say_notes(NodeLink& link, Console& err);

}  // namespace lockstep::launch
