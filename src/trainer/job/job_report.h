// What people see of a job: lines on rank 0.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "lockstep/trainer/reports.h"
#include "trainer/job/job_options.h"

namespace lockstep::trainer_detail {

class JobReport {
 public:
  static std::filesystem::path folder(const JobOptions& options);

  JobReport(const JobOptions& options, std::filesystem::path folder, std::vector<std::string> classes,
            std::int64_t samples);

  // Refer to this object.
  TrainerCallbacks callbacks();
  void end(const TrainingResult& result, const std::vector<data::CorruptFile>& corrupt);
  void fail(const std::string& error);

 private:
  void print(const std::string& line) const;

  const JobOptions& options_;
  std::filesystem::path folder_;
  std::vector<std::string> classes_;
  std::int64_t samples_;
};

}  // namespace lockstep::trainer_detail
