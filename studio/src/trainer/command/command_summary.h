// TensorBoard's files of `lockstep train`: curves, where the time goes, the weights of layers, the worst samples.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <utility>

#include "lockstep/report/run_log.h"
#include "lockstep/report/summary_writer.h"
#include "lockstep/trainer/reports.h"

namespace lockstep::trainer_detail {

class TrainCommandSummary {
 public:
  TrainCommandSummary() = default;  // writes nothing
  explicit TrainCommandSummary(report::SummaryWriter writer) : writer_(std::move(writer)) {}

  // To be called first. `first_step`: how many steps were done before. A training from the beginning replaces what is
  // in the folder.
  void start(std::int64_t first_step);
  void step(const StepReport& step, double loss);
  void epoch(const EpochReport& epoch);
  // Where the time of one rank went in an epoch.
  void times(std::int64_t epoch, const report::RankTimes& times);
  void evaluation(std::int64_t epoch, const report::Scalars& scalars);
  // Histograms of the weights of layers; not of biases and norms. Of a large tensor some values stand for all.
  void weights(std::int64_t epoch, const torch::nn::Module& model);
  // Their pictures as one sheet, and a table of what they are and what they were taken for.
  void worst(std::int64_t epoch, std::span<const report::Sample> samples);
  void flush() { writer_.flush(); }

 private:
  report::SummaryWriter writer_;
};

}  // namespace lockstep::trainer_detail
