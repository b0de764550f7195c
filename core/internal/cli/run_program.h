// The program `lockstep`, as far as it runs jobs and looks after them.
#pragma once

#include <memory>

#include "lockstep/options/table.h"

namespace lockstep::cli {

// `lockstep` with these arguments; returns the exit code. `table` is for the options of `run`; it reads the file of
// --config.
int run_program(int argc, char** argv, const std::shared_ptr<options::Table>& table);

}  // namespace lockstep::cli
