// A Status as a value in a store.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/status.h"

namespace lockstep::comm {

// "code message", also for success.
std::string to_text(const Status& status);
// kCorrupt for any other text.
Status status_from(std::string_view text);

}  // namespace lockstep::comm
