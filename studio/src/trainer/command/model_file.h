// The file of a trained model (kModelName): its state dict, and in the metadata all that its use needs.
//
//   lockstep.config          the keys of declare_model_file() as YAML, with the sections of config.yaml
//   lockstep.classes         the names of the classes, one a line
//   lockstep.input           the shape of a sample of the evaluation, "3 224 224"
//   lockstep.training_input  that of a sample of the training, for which the model was made
//   lockstep.parts           with data.validation_share the samples of the training and of the evaluation, "58 14"
//   lockstep.epochs, lockstep.step, lockstep.loss, lockstep.accuracy   TrainerOptions::model_file
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {

inline constexpr const char* kModelClasses = "lockstep.classes";
inline constexpr const char* kModelParts = "lockstep.parts";

// The numbers of samples of both parts of data.validation_share.
std::string text_of_parts(const TrainCommandData& data);

// All entries but those of the Trainer. `training_sample`, `sample`: shapes, of the training and of the evaluation.
// `test_batch_size`: of this training's evaluations.
std::map<std::string, std::string> model_metadata(TrainCommandOptions options, const std::vector<std::string>& classes,
                                                  at::IntArrayRef training_sample, at::IntArrayRef sample,
                                                  std::int64_t test_batch_size);

struct TrainedModel {
  std::string path;
  TrainCommandOptions options;       // of the training; keys that are not in the file have their defaults
  std::vector<std::string> classes;  // as printable() writes them
  std::vector<std::int64_t> input;
  std::vector<std::int64_t> training_input;
  std::map<std::string, std::string> metadata;
  checkpoint::StateDict state;
};

// `path` may be the folder of a run. Throws std::runtime_error for any other file.
TrainedModel read_trained_model(const std::filesystem::path& path);
// The model with the file's weights, in evaluation mode on the CPU. `options`: those of the file, changed by the
// command line.
TrainCommandModel make_trained_model(const TrainedModel& file, const TrainCommandOptions& options);

}  // namespace lockstep::trainer_detail
