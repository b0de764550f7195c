// Outcomes as values in a store.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// "code message", success too.
std::string to_text(const Status& status);
// kCorrupt for what is no such text.
Status status_from(std::string_view text);

}  // namespace lockstep::comm
