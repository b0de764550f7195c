// All of the component studio that a training program uses: the Trainer, configuration, and reports of a run.
#pragma once

#include "lockstep/config/command_line.h"    // IWYU pragma: export
#include "lockstep/report/part_timer.h"      // IWYU pragma: export
#include "lockstep/report/progress.h"        // IWYU pragma: export
#include "lockstep/report/report.h"          // IWYU pragma: export
#include "lockstep/report/run_log.h"         // IWYU pragma: export
#include "lockstep/report/stragglers.h"      // IWYU pragma: export
#include "lockstep/report/summary_writer.h"  // IWYU pragma: export
#include "lockstep/trainer/trainer.h"        // IWYU pragma: export
