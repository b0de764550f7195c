// What a rank does when it waits long: it shows in its other groups what it waits for, so that their errors can say
// where it is, and it warns its user once.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "engine/core/group.h"

namespace lockstep::comm {

// Shows `what` in the other groups of this rank while the wait of `watch` goes on, once it is long enough. With
// `in_itself` also in `group`: where a message is waited for, of which the group's other ranks see nothing.
void show_long_wait(const Group& group, Watch& watch, bool in_itself, const std::function<std::string()>& what);

// True once for each wait: when it has lasted longer than Communicator::set_patience() says.
bool loses_patience(Watch& watch);
// For a caller that only tests, before its first check after a while: a long time between two tests is none of waiting.
void leave_out_time_between_tests(Watch& watch, Watch::Time now);
// Whether a collective whose data last moved at `moved` is slow, and does not stand still.
bool still_moves(const Watch& watch, Watch::Time moved);
// "all_reduce #3 of group 'world' has waited for more than 30 s: ...". `why`: what holds it up.
std::string warning_of_wait(const std::string& what, const std::string& why);

}  // namespace lockstep::comm
