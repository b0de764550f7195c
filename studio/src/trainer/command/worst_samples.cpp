#include "trainer/command/worst_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/c10d/objects.h"
#include "lockstep/c10d/process_groups.h"
#include "lockstep/datasets/image_folder.h"
#include "lockstep/datasets/packed_images.h"
#include "picture_tools/thumbnail.h"

namespace lockstep::trainer_detail {
namespace {

constexpr std::size_t kMost = report::RunLog::kMostSamples;

// What the transforms have subtracted and divided by last; null: nothing.
const data::Normalize* normalization_of(const data::Dataset& dataset) {
  const data::ImageDataset* pictures = pictures_of(dataset);
  if (pictures == nullptr) return nullptr;
  const data::Normalize* last = nullptr;
  for (const data::Transform& transform : pictures->transform().transforms()) {
    if (const auto* found = std::get_if<data::Normalize>(&transform)) last = found;
  }
  return last;
}

torch::Tensor per_channel(const std::vector<double>& values) {
  return torch::tensor(values, torch::kFloat).view({-1, 1, 1});
}

// A cell of a table in Markdown.
std::string cell(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '|' || c == '\n' || c == '\r'; }, ' ');
  return text;
}

std::string table_of(std::span<const report::Sample> samples) {
  std::string text = "| | sample | class | taken for | with | loss |\n|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const report::Sample& sample = samples[i];
    text += fmt::format("| {} | {} | {} | {} | {:.0f} % | {:.3f} |\n", i + 1, cell(sample.name), cell(sample.label),
                        cell(sample.predicted), 100 * sample.probability, sample.loss);
  }
  return text;
}

}  // namespace

WorstSamples::WorstSamples(std::shared_ptr<const data::Dataset> dataset, std::vector<std::string> classes,
                           std::int64_t batch_size)
    : dataset_(std::move(dataset)), classes_(std::move(classes)), batch_size_(batch_size) {}

void WorstSamples::add(const data::Example& batch, const torch::Tensor& scores, std::int64_t first) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor target = batch.target.to(torch::kLong);
  if (scores.dim() != 2 || target.dim() != 1 || scores.size(0) != target.size(0)) return;
  const torch::Tensor log_probabilities = torch::log_softmax(scores.to(torch::kFloat), 1);
  const torch::Tensor losses = -log_probabilities.gather(1, target.unsqueeze(1)).squeeze(1).cpu();
  const auto [best, predicted_on_device] = log_probabilities.max(1);
  const torch::Tensor probabilities = best.exp().cpu();
  const torch::Tensor predicted = predicted_on_device.cpu();
  const torch::Tensor labels = target.cpu();
  std::vector<std::string> names;
  for (std::int64_t row = 0; row < labels.size(0); ++row) {
    Kept sample{.loss = losses[row].item<double>(),
                .label = labels[row].item<std::int64_t>(),
                .predicted = predicted[row].item<std::int64_t>()};
    if (std::isnan(sample.loss)) sample.loss = std::numeric_limits<double>::infinity();
    if (sample.label == sample.predicted || (kept_.size() == kMost && sample.loss <= kept_.back().loss)) continue;
    if (names.empty()) names = names_of(first, labels.size(0));
    sample.probability = probabilities[row].item<double>();
    sample.name = names[static_cast<std::size_t>(row)];
    sample.picture = picture_of(batch.data[row]);
    keep(std::move(sample));
  }
}

void WorstSamples::keep(Kept sample) {
  const auto place = std::upper_bound(kept_.begin(), kept_.end(), sample,
                                      [](const Kept& a, const Kept& b) { return a.loss > b.loss; });
  kept_.insert(place, std::move(sample));
  if (kept_.size() > kMost) kept_.pop_back();
}

// The names of a batch's samples. Corrupt pictures may have been left out of it, or have others in their place.
std::vector<std::string> WorstSamples::names_of(std::int64_t first, std::int64_t rows) const {
  const std::int64_t ranks = get_world_size();
  const std::set<std::int64_t> corrupt = corrupt_samples();
  std::vector<std::int64_t> indices;
  for (std::int64_t position = first; position < first + batch_size_; ++position) {
    const std::int64_t index = get_rank() + ranks * position;
    if (index < dataset_->size()) indices.push_back(index_in_pictures(*dataset_, index));
  }
  if (std::ssize(indices) > rows) std::erase_if(indices, [&](std::int64_t index) { return corrupt.contains(index); });
  std::vector<std::string> names(static_cast<std::size_t>(rows));
  if (first < 0 || std::ssize(indices) != rows) return names;
  for (std::size_t row = 0; row < names.size(); ++row) {
    names[row] = name_of(indices[row]);
    if (corrupt.contains(indices[row])) names[row] += " (corrupt: another picture in its place)";
  }
  return names;
}

std::string WorstSamples::name_of(std::int64_t index) const {
  const data::ImageDataset* pictures = pictures_of(*dataset_);
  if (const auto* folder = dynamic_cast<const data::ImageFolder*>(pictures)) {
    return folder->samples()[static_cast<std::size_t>(index)].path;
  }
  if (const auto* packed = dynamic_cast<const data::PackedImages*>(pictures)) {
    return std::string(packed->pack().name(index));
  }
  return "test sample " + std::to_string(index);
}

// By index: `cat/1.jpg` is the end of another picture's name, `bobcat/1.jpg`.
std::set<std::int64_t> WorstSamples::corrupt_samples() const {
  std::set<std::int64_t> samples;
  const data::ImageDataset* pictures = pictures_of(*dataset_);
  if (pictures == nullptr) return samples;
  for (const data::CorruptFile& file : pictures->corrupt_files()) samples.insert(file.index);
  return samples;
}

// The picture that the model has got, as bytes.
torch::Tensor WorstSamples::picture_of(const torch::Tensor& sample) const {
  torch::Tensor picture = sample.detach().cpu();
  if (picture.dim() != 3 || (picture.size(0) != 1 && picture.size(0) != 3)) return torch::empty({0}, torch::kByte);
  if (picture.scalar_type() != torch::kByte) {
    picture = picture.to(torch::kFloat);
    if (const data::Normalize* normalize = normalization_of(*dataset_)) {
      picture = picture * per_channel(normalize->std) + per_channel(normalize->mean);
    } else if (picture.min().item<float>() < 0 || picture.max().item<float>() > 1) {
      picture = (picture - picture.min()) / (picture.max() - picture.min()).clamp_min(1e-6);
    }
    picture = picture.nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch::kByte);
  }
  return picture.permute({1, 2, 0}).contiguous();
}

std::string WorstSamples::class_name(std::int64_t number) const {
  const bool known = number >= 0 && number < std::ssize(classes_);
  return known ? classes_[static_cast<std::size_t>(number)] : std::to_string(number);
}

WorstSamples::Found WorstSamples::take() {
  std::vector<std::vector<double>> numbers;
  std::vector<std::string> names;
  std::vector<torch::Tensor> pictures;
  for (const Kept& sample : std::exchange(kept_, {})) {
    numbers.push_back(
        {sample.loss, sample.probability, static_cast<double>(sample.label), static_cast<double>(sample.predicted)});
    names.push_back(sample.name);
    pictures.push_back(sample.picture);
  }
  const auto all_numbers = gather_object(numbers, 0);
  const auto all_names = gather_object(names, 0);
  const auto all_pictures = gather_object(pictures, 0);
  std::vector<Kept> all;
  for (std::size_t rank = 0; rank < all_numbers.size(); ++rank) {
    for (std::size_t i = 0; i < all_numbers[rank].size(); ++i) {
      const std::vector<double>& of_sample = all_numbers[rank][i];
      all.push_back({of_sample[0], of_sample[1], static_cast<std::int64_t>(of_sample[2]),
                     static_cast<std::int64_t>(of_sample[3]), all_names[rank][i], all_pictures[rank][i]});
    }
  }
  return found(std::move(all));
}

WorstSamples::Found WorstSamples::found(std::vector<Kept> all) const {
  std::stable_sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) { return a.loss > b.loss; });
  if (all.size() > kMost) all.resize(kMost);
  Found found;
  found.pictures.reserve(all.size());  // the samples refer to them
  for (const Kept& one : all) {
    found.pictures.emplace_back();
    if (one.picture.numel() > 0) {
      found.pictures.back() = data::image_from_packed(
          {one.picture.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(one.picture.numel())},
          {.width = static_cast<int>(one.picture.size(1)), .height = static_cast<int>(one.picture.size(0))},
          static_cast<int>(one.picture.size(2)));
    }
    found.samples.push_back({.name = one.name,
                             .label = class_name(one.label),
                             .predicted = class_name(one.predicted),
                             .loss = one.loss,
                             .probability = one.probability,
                             .picture = one.picture.numel() > 0 ? &found.pictures.back() : nullptr});
  }
  return found;
}

void show_worst(report::SummaryWriter& summary, std::int64_t epoch, std::span<const report::Sample> samples) {
  constexpr std::size_t kShown = 12;
  constexpr int kSide = 96;
  constexpr int kColumns = 6;
  const auto shown = samples.first(std::min(samples.size(), kShown));
  if (shown.empty()) return;
  std::vector<const data::Image*> pictures;
  for (const report::Sample& sample : shown) pictures.push_back(sample.picture);
  const auto sheet = data::contact_sheet(pictures, kSide, kColumns);
  if (!sheet.ok()) return log::warning("the worst samples are not in TensorBoard: " + sheet.status().message());
  summary.add_image("worst/pictures", sheet.value(), epoch);
  summary.add_text("worst/table", table_of(shown), epoch);
}

}  // namespace lockstep::trainer_detail
