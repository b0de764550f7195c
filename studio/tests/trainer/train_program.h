// `lockstep train`, as a program, on the pictures of `lockstep new`: 24 of each of 3 classes to train, 8 to test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/new_project/new_project.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {

class TrainProgram : public testing::Test {
 protected:
  TrainProgram() {
    // On the CPU everywhere: several ranks would share a GPU, and results are compared bit for bit.
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    const Status made =
        cli::new_project(cli::project_templates(std::filesystem::path(LOCKSTEP_PROGRAM).parent_path()), project_);
    EXPECT_TRUE(made.ok()) << made.message();
    write("");
  }

  // A configuration for a small model; `more` are further lines.
  void write(const std::string& more) {
    scratch_.write("config.yaml",
                   "output: " + scratch_.path("run") + "\ndata:\n  train: " + project_ +
                       "/data/pictures/train\n  test: " + project_ +
                       "/data/pictures/test\n  transforms: [RandomHorizontalFlip, ToTensor]\n  workers: 1\n"
                       "model:\n  name: mobilenet_v3_small\n  small_images: true\n"
                       "optimizer:\n  lr: 0.01\ntrainer:\n  epochs: 2\n  batch_size: 12\n" +
                       more);
  }
  std::vector<std::string> words(const std::vector<std::string>& options, int ranks = 1) const {
    std::vector<std::string> words{LOCKSTEP_PROGRAM};
    // Ranks that are interrupted end after their step, which takes many seconds on a loaded machine.
    if (ranks > 1)
      words.insert(words.end(), {"run", "--standalone", "--grace", "60", "--nproc-per-node", std::to_string(ranks),
                                 LOCKSTEP_PROGRAM});
    words.insert(words.end(), {"train", "--config", scratch_.path("config.yaml")});
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }
  Finished train(const std::vector<std::string>& options, int ranks = 1) const {
    Process process(words(options, ranks), {.environment = {"OMP_NUM_THREADS=1"}});
    return process.finish(std::chrono::seconds(100));
  }
  void expect_error(const std::vector<std::string>& options, int code, const std::vector<std::string>& parts) const {
    const Finished finished = train(options);
    EXPECT_EQ(finished.exit_code, code) << finished.err;
    EXPECT_EQ(finished.err.find("frame #"), std::string::npos) << finished.err;
    for (const std::string& part : parts)
      EXPECT_NE(finished.err.find(part), std::string::npos) << part << " in: " << finished.err;
  }

  ScratchFolder scratch_;
  std::string project_ = scratch_.path("project");
};

}  // namespace lockstep::test
