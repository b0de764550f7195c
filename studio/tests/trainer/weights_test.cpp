// model.weights and model.new_head: which layer may begin with new weights.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "nn/error_texts.h"
#include "support/scratch_folder.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {
namespace {

torch::nn::Sequential layers(std::int64_t inputs, std::int64_t classes) {
  return torch::nn::Sequential(torch::nn::Linear(inputs, 8), torch::nn::Linear(8, classes));
}

std::string loaded(torch::nn::Sequential model, const TrainCommandOptions& options) {
  try {
    return load_weights(*model, options, {});
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

TEST(Weights, OnlyALayerWithOtherClassesIsANewHead) {
  const test::ScratchFolder folder;
  TrainCommandOptions options;
  options.weights = folder.path("net.safetensors");
  options.new_head = true;
  checkpoint::write_state_dict(options.weights, checkpoint::state_dict(*layers(6, 3)));
  test::expect_in(loaded(layers(6, 5), options), {"all but '1', which starts from new weights"});
  const std::string other_input = loaded(layers(7, 3), options);
  test::expect_in(other_input, {"0.weight is [8, 6] in the file and [8, 7] in the model"});
  EXPECT_EQ(other_input.find("new weights"), std::string::npos) << other_input;
}

// As Python's DistributedDataParallel and torch.compile name them.
TEST(Weights, PrefixesOfWrappersDoNotHideANewHead) {
  const test::ScratchFolder folder;
  TrainCommandOptions options;
  options.weights = folder.path("net.safetensors");
  options.new_head = true;
  for (const char* wrapper : {"module.", "_orig_mod.", "module._orig_mod."}) {
    const auto state = checkpoint::add_prefix(checkpoint::state_dict(*layers(6, 3)), wrapper);
    checkpoint::write_state_dict(options.weights, state);
    test::expect_in(loaded(layers(6, 5), options), {"all but '1', which starts from new weights"});
  }
}

TEST(Weights, SayWhatAFolderMayBeAndNameNoEntriesOfAList) {
  const test::ScratchFolder folder;
  TrainCommandOptions options;
  options.weights = folder.path("all");
  checkpoint::write_torch_file(folder.path("list.pt"), c10::IValue(std::vector<std::int64_t>{1, 2}));
  folder.write("all/one.pt", "");
  test::expect_in(loaded(layers(6, 3), options), {"model.weights: ", "all: expected a file, or the folder of a run"});
  options.weights = folder.path("list.pt");
  const std::string text = loaded(layers(6, 3), options);
  test::expect_in(text, {"model.weights: ", "expected a dict of tensors, found "});
  EXPECT_EQ(text.find("weights_key"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::trainer_detail
