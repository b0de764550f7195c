// The keys of config.yaml, with their defaults.
#pragma once

#include <lockstep/config/schema.h>
#include <lockstep/datasets/image_dataset.h>

#include <cstdint>
#include <string>
#include <vector>

struct Options {
  std::string output = "runs/first";
  std::string train = "data/pictures/train";
  std::string test = "data/pictures/test";
  std::vector<std::string> transforms = {"ToTensor"};
  std::vector<std::string> test_transforms = {"ToTensor"};
  lockstep::data::OnCorrupt on_corrupt = lockstep::data::OnCorrupt::kRaise;
  double lr = 0.02;
  double momentum = 0.9;
  std::int64_t epochs = 20;
  std::int64_t batch_size = 8;
  std::int64_t seed = 1;
  bool resume = false;
};

inline void declare(Options& options, lockstep::config::Schema& schema) {
  schema.ignore_section("launch");  // that of `lockstep run`
  auto top = schema.section("", "Trains a small model on folders of pictures.");
  top.key("output", options.output, "Folder of the run: its log, report and checkpoints");
  auto data = schema.section("data", "Where the pictures are");
  data.key("train", options.train, "Folder of the training");
  data.key("test", options.test, "Folder of the evaluation");
  data.key("transforms", options.transforms, "Of the training, as in torchvision");
  data.key("test_transforms", options.test_transforms, "Of the evaluation");
  using lockstep::data::OnCorrupt;
  data.key("on_corrupt", options.on_corrupt,
           {{"raise", OnCorrupt::kRaise}, {"replace", OnCorrupt::kReplace}, {"skip", OnCorrupt::kSkip}},
           "Pictures that cannot be decoded: an error, another picture, or a smaller batch");
  auto optimizer = schema.section("optimizer", "SGD");
  optimizer.key("lr", options.lr, "Learning rate").at_least(0);
  optimizer.key("momentum", options.momentum, "Momentum").at_least(0);
  auto trainer = schema.section("trainer", "The training");
  trainer.key("epochs", options.epochs, "Passes over the data").at_least(0);
  trainer.key("batch_size", options.batch_size, "Samples in a batch of each process").at_least(1);
  trainer.key("seed", options.seed, "Of weights, order and transforms").at_least(0);
  schema.section("checkpoint", "Checkpoints").key("resume", options.resume, "Go on from the newest one");
}
