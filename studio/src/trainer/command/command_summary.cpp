#include "trainer/command/command_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/arithmetic.h"
#include "lockstep/base/log.h"
#include "picture_tools/thumbnail.h"

namespace lockstep::trainer_detail {
namespace {

// How many values of a tensor are counted. A million take 50 ms, and these are enough for the shape of a histogram.
constexpr std::int64_t kMostCounted = 10'000;

torch::Tensor some_values(const torch::Tensor& weights) {
  const torch::Tensor flat = weights.detach().flatten();
  return flat.slice(0, 0, flat.numel(), ceil_divide(std::max<std::int64_t>(1, flat.numel()), kMostCounted))
      .to(torch::kCPU, torch::kFloat)
      .contiguous();
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

// Values of epochs stay: there are no fewer steps than epochs, so the numbers of epochs before are below the next step.
void TrainCommandSummary::start(std::int64_t first_step) {
  writer_.purge(first_step == 0 ? 0 : first_step + 1);  // steps count from 1, epochs from 0
}

void TrainCommandSummary::step(const StepReport& step, double loss) {
  writer_.add_scalar("train/loss", loss, step.step);
  writer_.add_scalar("train/lr", step.learning_rate, step.step);
}

void TrainCommandSummary::epoch(const EpochReport& epoch) {
  writer_.add_scalar("epoch/train_loss", epoch.loss, epoch.epoch);
  writer_.add_scalar("epoch/samples_per_second", static_cast<double>(epoch.samples) / epoch.seconds, epoch.epoch);
}

void TrainCommandSummary::times(std::int64_t epoch, const report::RankTimes& times) {
  for (const auto& [part, seconds] : times.seconds) writer_.add_scalar("time/" + part, seconds, epoch);
}

void TrainCommandSummary::evaluation(std::int64_t epoch, const report::Scalars& scalars) {
  for (const auto& [name, value] : scalars) writer_.add_scalar("epoch/test_" + name, value, epoch);
}

void TrainCommandSummary::weights(std::int64_t epoch, const torch::nn::Module& model) {
  for (const auto& item : model.named_parameters()) {
    const torch::Tensor& weights = item.value();
    if (!weights.defined() || weights.dim() < 2 || !weights.is_floating_point()) continue;
    const torch::Tensor values = some_values(weights);
    writer_.add_histogram("weights/" + item.key(),
                          {values.const_data_ptr<float>(), static_cast<std::size_t>(values.numel())}, epoch);
  }
}

void TrainCommandSummary::worst(std::int64_t epoch, std::span<const report::Sample> samples) {
  constexpr std::size_t kShown = 12;
  constexpr int kSide = 96;
  constexpr int kColumns = 6;
  const auto shown = samples.first(std::min(samples.size(), kShown));
  if (shown.empty()) return;
  std::vector<const data::Image*> pictures;
  for (const report::Sample& sample : shown) pictures.push_back(sample.picture);
  const auto sheet = data::contact_sheet(pictures, kSide, kColumns);
  if (!sheet.ok()) return log::warning("the worst samples are not in TensorBoard: " + sheet.status().message());
  writer_.add_image("worst/pictures", sheet.value(), epoch);
  writer_.add_text("worst/table", table_of(shown), epoch);
}

}  // namespace lockstep::trainer_detail
