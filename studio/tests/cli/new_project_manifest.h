// The manifest for Kubernetes of a project that `lockstep new` has just made.
#pragma once

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {

inline std::vector<YAML::Node> manifest_of_a_new_project() {
  const ScratchFolder folder;
  const Finished made = run_program({LOCKSTEP_PROGRAM, "new", folder.path("My_Flowers")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return YAML::LoadAllFromFile(folder.path("My_Flowers/scripts/kubernetes.yaml"));
}

}  // namespace lockstep::test
