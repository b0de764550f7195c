// torch.distributed for C++: make a world of ranks, move and reduce tensors between them.
#pragma once

#include "lockstep/c10d/collectives.h"     // IWYU pragma: export
#include "lockstep/c10d/cuda.h"            // IWYU pragma: export
#include "lockstep/c10d/errors.h"          // IWYU pragma: export
#include "lockstep/c10d/process_groups.h"  // IWYU pragma: export
#include "lockstep/c10d/reconfigure.h"     // IWYU pragma: export
