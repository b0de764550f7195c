// The place from which this thread calls, for the flight recorder.
#pragma once

#include <algorithm>

#include "base/call_place.h"
#include "flight/recorder.h"

namespace lockstep {

// Gives `call` the place, and the recorder the texts up to it.
inline void record_place(const flight::GroupRecord& record, flight::Call& call) {
  const CallPlace place = current_call_place();
  const TextNumber last = std::max(place.site, place.label);
  for (TextNumber known = record.texts(); known < last; known = record.texts()) {
    record.add_text(known + 1, text_of(known + 1).data());
  }
  call.site = static_cast<std::uint16_t>(place.site);
  call.label = static_cast<std::uint16_t>(place.label);
}

}  // namespace lockstep
