// All of Lockstep that a training program uses: the components core, vision and studio. A program that needs only one
// of them includes that one's header, and compiles in less time.
#pragma once

#include "lockstep/core.h"    // IWYU pragma: export
#include "lockstep/studio.h"  // IWYU pragma: export
#include "lockstep/vision.h"  // IWYU pragma: export
