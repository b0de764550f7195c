// Tells the user what the nodes of a job do.
#pragma once

#include "launch/nodes/node_link.h"
#include "launch/output/console.h"

namespace lockstep::launch {

// Important notes go to stderr, the others to the log; all of them if `reports` is false.
void say_notes(NodeLink& link, Console& err, bool reports);

}  // namespace lockstep::launch
