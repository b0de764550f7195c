// The samples of an evaluation that the model gets wrong, with the largest loss of all ranks, and their pictures.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lockstep/image/image.h"
#include "lockstep/report/run_log.h"
#include "lockstep/report/summary_writer.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {

class WorstSamples {
 public:
  // `batch_size`: of the evaluation's loader, which gives each sample to one rank once, in the dataset's order.
  WorstSamples(std::shared_ptr<const data::Dataset> dataset, std::vector<std::string> classes, std::int64_t batch_size);

  // A batch of an evaluation, and the model's scores for it, [samples, classes]. `first`: the position of its first
  // sample among those of this rank; negative: not known, so the samples have no names.
  void add(const data::Example& batch, const torch::Tensor& scores, std::int64_t first);
  // Forgets the samples of an evaluation that is made again.
  void forget() { kept_.clear(); }

  // The samples refer to the pictures.
  struct Found {
    std::vector<data::Image> pictures = {};
    std::vector<report::Sample> samples = {};
  };
  // Ends the evaluation. Collective: rank 0 gets those of all ranks, the others none.
  Found take();

 private:
  struct Kept {
    double loss = 0;
    double probability = 0;  // of the predicted class
    std::int64_t label = 0;
    std::int64_t predicted = 0;
    std::string name = {};
    torch::Tensor picture = {};  // bytes {height, width, channels}; of no elements: there is none
  };

  std::vector<std::string> names_of(std::int64_t first, std::int64_t rows) const;
  std::string name_of(std::int64_t index) const;
  std::set<std::int64_t> corrupt_samples() const;
  torch::Tensor picture_of(const torch::Tensor& sample) const;
  std::string class_name(std::int64_t number) const;
  void keep(Kept sample);
  Found found(std::vector<Kept> all) const;

  std::shared_ptr<const data::Dataset> dataset_;
  std::vector<std::string> classes_;
  std::int64_t batch_size_;
  std::vector<Kept> kept_;  // largest loss first
};

// In TensorBoard: the pictures as one sheet, and a table of what they are and what they were taken for.
void show_worst(report::SummaryWriter& summary, std::int64_t epoch, std::span<const report::Sample> samples);

}  // namespace lockstep::trainer_detail
