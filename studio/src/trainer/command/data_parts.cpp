// The parts of one folder, and what is known of its classes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "base/printable.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {

const data::ImageDataset* pictures_of(const data::Dataset& dataset) {
  if (const auto* part = dynamic_cast<const DataPart*>(&dataset)) return pictures_of(part->whole());
  return dynamic_cast<const data::ImageDataset*>(&dataset);
}

DataParts split_by_class(const std::vector<std::int64_t>& labels, const std::vector<std::string>& classes, double share,
                         std::int64_t seed, std::string_view remedy) {
  std::vector<std::vector<std::int64_t>> samples(classes.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    samples.at(static_cast<std::size_t>(labels[i])).push_back(static_cast<std::int64_t>(i));
  }
  DataParts parts;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const std::int64_t count = std::ssize(samples[c]);
    if (count == 0) continue;  // data.allow_empty
    const std::int64_t taken = std::llround(share * static_cast<double>(count));
    if (count == 1) {
      throw std::runtime_error(
          fmt::format("class '{}' has 1 picture, which cannot be split: {}", printable(classes[c]), remedy));
    }
    if (taken == 0 || taken == count) {
      throw std::runtime_error(
          fmt::format("{} of class '{}' with its {} pictures leaves the {} without this class; expected a share that "
                      "rounds to {} of them",
                      share, printable(classes[c]), count, taken == 0 ? "evaluation" : "training",
                      count == 2 ? "1" : fmt::format("1 to {}", count - 1)));
    }
    const auto order = data::view::split(count, {static_cast<double>(taken), static_cast<double>(count - taken)},
                                         static_cast<std::uint64_t>(seed) + c);
    for (const std::int64_t place : order[0]) parts.evaluation.push_back(samples[c][static_cast<std::size_t>(place)]);
    for (const std::int64_t place : order[1]) parts.training.push_back(samples[c][static_cast<std::size_t>(place)]);
  }
  std::sort(parts.evaluation.begin(), parts.evaluation.end());
  std::sort(parts.training.begin(), parts.training.end());
  return parts;
}

std::vector<std::int64_t> counts_of(const std::vector<std::int64_t>& labels, std::size_t classes) {
  std::vector<std::int64_t> counts(classes, 0);
  for (const std::int64_t label : labels) ++counts.at(static_cast<std::size_t>(label));
  return counts;
}

std::string imbalance_note(const TrainCommandOptions& options, const TrainCommandData& data) {
  constexpr std::int64_t kFar = 10;  // times as many pictures as another class has
  if (options.class_balance != ClassBalance::kNone) return "";
  const std::vector<std::int64_t> counts = counts_of(data.labels, data.classes.size());
  std::size_t fewest = 0;
  std::size_t most = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t c = 0; c < counts.size(); ++c) {
    if (counts[c] > counts[most]) most = c;
    if (counts[c] == 0 || counts[c] >= least) continue;  // data.allow_empty
    least = counts[c];
    fewest = c;
  }
  if (counts.empty() || counts[most] / least < kFar) return "";
  return fmt::format(
      "the classes are far from balanced: '{}' has {} training pictures, and '{}' has {}; with data.class_balance: "
      "weights or sampling each class counts equally",
      printable(data.classes[most]), counts[most], printable(data.classes[fewest]), least);
}

torch::Tensor class_weights(const TrainCommandOptions& options, const TrainCommandData& data,
                            std::int64_t num_classes) {
  if (options.class_balance != ClassBalance::kWeights) return {};
  const std::vector<std::int64_t> counts = counts_of(data.labels, static_cast<std::size_t>(num_classes));
  const std::int64_t present =
      std::count_if(counts.begin(), counts.end(), [](std::int64_t count) { return count > 0; });
  std::vector<float> weights;
  weights.reserve(counts.size());
  for (const std::int64_t count : counts) {
    weights.push_back(count == 0 ? 0.0F
                                 : static_cast<float>(static_cast<double>(data.labels.size()) /
                                                      static_cast<double>(present * count)));
  }
  return torch::tensor(weights);
}

}  // namespace lockstep::trainer_detail
