// What `lockstep train` does. No torch header.
#pragma once

#include "trainer/command/command_options.h"

namespace lockstep::trainer_detail {

// Joins the world and trains, or prints the plan. Returns the exit code: 0, or 128 + the signal that ended the
// training. Throws.
int run_train_command(const TrainCommandOptions& options);

}  // namespace lockstep::trainer_detail
