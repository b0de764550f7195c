// What people see of `lockstep train`: lines and progress on rank 0, and in the folder of the run its log,
// TensorBoard's files and report.html.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/datasets/image_dataset.h"
#include "lockstep/report/progress.h"
#include "lockstep/report/run_log.h"
#include "lockstep/report/summary_writer.h"
#include "lockstep/trainer/reports.h"
#include "trainer/command/command.h"

namespace lockstep::trainer_detail {

class TrainCommandReport {
 public:
  static std::filesystem::path folder(const TrainCommandOptions& options);

  // Throws on rank 0 when it cannot write to the folder, or when another training does. `is_newcomer`: the process
  // waits for the place of a dead rank, and shows and writes nothing until then. `evaluates`: whether there are
  // evaluations.
  TrainCommandReport(const TrainCommandOptions& options, std::filesystem::path folder, std::vector<std::string> classes,
                     bool is_newcomer, bool evaluates = false);

  // Refer to this object.
  TrainerCallbacks callbacks();
  // Around each batch of an evaluation: `epoch` is the one that it is of, `batches` how many this rank has in it.
  void begin_test_batch(std::int64_t epoch, std::int64_t batches);
  void end_test_batch(std::int64_t samples);
  void end(const TrainingResult& result, const std::vector<data::CorruptFile>& corrupt);
  // `epoch`, `step`: where the training is, for one that has failed before its first step. An earlier run in the folder
  // stays as it is then, unless this training goes on with it or the earlier one has failed before its first step too.
  // `corrupt`: of this rank.
  void fail(const std::string& error, std::int64_t epoch, std::int64_t step,
            const std::vector<data::CorruptFile>& corrupt);

 private:
  void print(const std::string& line);
  // Logs the start of the run; later calls do nothing.
  void start(std::int64_t first_epoch, std::int64_t first_step);
  // Renames the file of an earlier training's model, before the first step of this one is logged.
  void set_model_aside() const;
  void begin_epoch(const StepReport& first);
  void step(const StepReport& step);
  void epoch(const EpochReport& epoch);
  void evaluation(const Evaluation& found);
  void recovery(const RecoveryReport& recovery);
  // Where this rank becomes rank 0, or is it no more.
  void take_over();
  void let_go();
  // Collective: logs the times of every rank. Returns who makes the others wait, as text.
  std::string log_times(const EpochReport& epoch);
  bool has_earlier_steps() const;
  void print_corrupt(const std::vector<data::CorruptFile>& corrupt);
  void print_end(const TrainingResult& result);
  void print_model(const TrainingResult& result);
  void write_page();

  const TrainCommandOptions& options_;
  std::filesystem::path folder_;
  std::vector<std::string> classes_;
  bool has_evaluations_;
  bool shows_;  // rank 0
  bool draws_;  // rank 0 on a terminal
  bool started_ = false;
  bool recovered_ = false;           // after the first step: the run was begun, maybe by another process
  std::int64_t world_size_;          // in the log
  std::vector<std::string> untold_;  // notes for the log, which has to be started first
  std::int64_t epoch_ = -1;          // the one whose training is shown
  bool evaluates_ = false;           // an evaluation is shown
  report::RunLog log_;
  report::SummaryWriter summary_;  // TensorBoard's files
  std::optional<report::Progress> progress_;
};

}  // namespace lockstep::trainer_detail
