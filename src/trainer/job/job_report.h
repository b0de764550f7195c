// What people see of a job: lines and progress on rank 0, and in the folder of the run its log, TensorBoard's files and
// report.html.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "lockstep/report/progress.h"
#include "lockstep/report/run_log.h"
#include "lockstep/report/summary_writer.h"
#include "lockstep/trainer/reports.h"
#include "trainer/job/job_options.h"

namespace lockstep::trainer_detail {

class JobReport {
 public:
  static std::filesystem::path folder(const JobOptions& options);

  // `steps` of an epoch. Throws on rank 0 when it cannot write to the folder, or when another training does.
  JobReport(const JobOptions& options, std::filesystem::path folder, std::vector<std::string> classes,
            std::int64_t steps);

  // Refer to this object.
  TrainerCallbacks callbacks();
  void end(const TrainingResult& result, const std::vector<data::CorruptFile>& corrupt);
  void fail(const std::string& error);

 private:
  void print(const std::string& line);
  void start(const StepReport& first);
  void step(const StepReport& step);
  void epoch(const EpochReport& epoch);
  void evaluation(const Evaluation& found);
  // Collective: the times of every rank.
  void log_times(const EpochReport& epoch);
  void write_page();

  const JobOptions& options_;
  std::filesystem::path folder_;
  std::vector<std::string> classes_;
  std::int64_t steps_;
  bool shows_;  // rank 0
  bool draws_;  // rank 0 on a terminal
  bool started_ = false;
  std::int64_t epoch_ = -1;  // the one whose progress is shown
  report::RunLog log_;
  report::SummaryWriter summary_;
  report::Progress progress_;
};

}  // namespace lockstep::trainer_detail
