// The program behind `lockstep run --config FILE`: `lockstep run` with the section `launch` of a configuration file.
#include <memory>

#include "base/standard_descriptors.h"
#include "cli/run_program.h"
#include "lockstep/config/schema.h"

int main(int argc, char** argv) {
  lockstep::fill_standard_descriptors();
  const auto table = std::make_shared<lockstep::config::Schema>();
  table->ignore_other_sections();
  return lockstep::cli::run_program(argc, argv, table);
}
