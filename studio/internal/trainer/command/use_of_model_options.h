// What `lockstep evaluate`, `predict` and `checkpoint export` do with the file of a trained model. No torch header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/command/command.h"

namespace lockstep::trainer_detail {

enum class EvaluatedPart { kAll, kTraining, kEvaluation };
enum class ResultFormat { kText, kCsv, kJson };

struct EvaluateCommandOptions {
  std::string model;  // the file, or the folder of a run
  std::string data;
  EvaluatedPart part = EvaluatedPart::kAll;  // of data.validation_share
  std::vector<std::int64_t> top_k;
  ResultFormat format = ResultFormat::kText;
  std::string output;            // empty: stdout
  TrainCommandOptions training;  // of the model's file, changed by the command line
};

struct PredictCommandOptions {
  std::string model;
  std::vector<std::string> pictures;  // files and folders
  std::string list;                   // a file with one path a line
  std::int64_t top_k = 1;
  ResultFormat format = ResultFormat::kCsv;
  std::string output;
  TrainCommandOptions training;
};

struct ExportCommandOptions {
  std::string model;
  std::string torchscript;       // the file to write
  TrainCommandOptions training;  // its shared object alone counts
};

// Bind all options to `options`, which must outlive the table.
void declare(EvaluateCommandOptions& options, options::Table& table);
void declare(PredictCommandOptions& options, options::Table& table);
void declare(ExportCommandOptions& options, options::Table& table);

// Join the world (an export does not), and return the exit code: 0; 1 where pictures have no prediction; 2 for wrong
// options, which are printed. `table` has read the command line. Throw.
int run_evaluate_command(EvaluateCommandOptions& options, options::Table& table);
int run_predict_command(PredictCommandOptions& options, options::Table& table);
int run_export_command(ExportCommandOptions& options, options::Table& table);

}  // namespace lockstep::trainer_detail
