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
// "all_reduce #3 of group 'world' has waited for more than 30 s: ..." as a warning. `why`: what holds it up.
void warn_of_wait(const std::string& what, const std::string& why);

}  // namespace lockstep::comm
