// A run's files for the tests of `lockstep checkpoint`.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/dict.h"
#include "checkpoint/same_values.h"
#include "checkpoint/tools/tools.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "support/scratch_folder.h"

namespace lockstep::checkpoint {

inline std::string joined(const Lines& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

// A run: a model and its optimizer after a step.
struct Trained {
  torch::nn::Linear net{3, 2};
  torch::optim::AdamW optimizer{net->parameters(), torch::optim::AdamWOptions(0.01)};

  Trained() {
    net->forward(torch::ones({4, 3})).sum().backward();
    optimizer.step();
  }
  Dict dict() const {
    Dict run = make_dict();
    run.insert("model", to_ivalue(state_dict(*net)));
    run.insert("optimizer", state_dict(optimizer));
    run.insert("step", 42);
    run.insert("best", 0.75);
    run.insert("name", "first run");
    return run;
  }
};

class CheckpointTools : public testing::Test {
 protected:
  CheckpointTools() {
    write_torch_file(path("run.pt"), run_.dict());
    write_state_dict(path("model.safetensors"), state_dict(*run_.net));
  }

  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  // Whether two files, or the values under this key of them, are the same with the same types.
  bool same(const std::string& first, const std::string& second, std::string_view entry = "") const {
    return same_files(path(first), path(second), entry);
  }

  test::ScratchFolder folder_;
  Trained run_;
};

}  // namespace lockstep::checkpoint
