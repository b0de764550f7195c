// The deadlines of the tests of stores.
#pragma once

#include "lockstep/base/deadline.h"

namespace lockstep::comm {

// A call that succeeds takes milliseconds. A test whose call waits for this deadline has failed.
inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

// What is not there already will not come.
inline Deadline now() {
  return Deadline::after(std::chrono::seconds(0));
}

}  // namespace lockstep::comm
