// A state on its way from one rank to another: messages of the world, without files.
#pragma once

#include <vector>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep::elastic_detail {

// Both block. Ranks of the world.
void send_state(const std::vector<checkpoint::Checkpoint>& parts, int to);
std::vector<checkpoint::Checkpoint> receive_state(int from);

}  // namespace lockstep::elastic_detail
