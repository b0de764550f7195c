// Parts of the model that do not train, and batches that are mixed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <stdexcept>

#include "base/printable.h"
#include "lockstep/datasets/mix.h"
#include "trainer/command/command_parts.h"

namespace lockstep::trainer_detail {

std::vector<std::shared_ptr<torch::nn::Module>> freeze(torch::nn::Module& model,
                                                       const std::vector<std::string>& names) {
  std::vector<std::shared_ptr<torch::nn::Module>> frozen;
  const auto parameters = model.named_parameters();
  const auto modules = model.named_modules("", /*include_self=*/false);
  for (const std::string& name : names) {
    bool found = false;
    for (const auto& parameter : parameters) {
      if (name.empty() || (parameter.key() != name && !parameter.key().starts_with(name + '.'))) continue;
      torch::Tensor(parameter.value()).set_requires_grad(false);
      found = true;
    }
    if (!found) {
      std::set<std::string> first;
      for (const auto& parameter : parameters) first.insert(parameter.key().substr(0, parameter.key().find('.')));
      throw std::runtime_error(fmt::format(
          "model.freeze: expected names of modules or parameters of the model, found '{}'; its parts are {}",
          printable(name), fmt::join(first, ", ")));
    }
    if (const auto* module = modules.find(name)) frozen.push_back(*module);
  }
  for (const auto& parameter : parameters) {
    if (parameter.value().requires_grad()) return frozen;
  }
  throw std::runtime_error("model.freeze: expected a part of the model, found all of it: nothing is left to train");
}

std::string freeze_note(const TrainCommandOptions& options) {
  // A model of the user's own may have read weights itself.
  if (options.freeze.empty() || !options.weights.empty() || options.resume || options.model == "custom") return "";
  return fmt::format(
      "warning: model.freeze without model.weights: {} keep the random values with which they begin, and learn nothing",
      fmt::join(options.freeze, ", "));
}

data::Example mixed(const data::Example& batch, const TrainCommandOptions& options, std::int64_t num_classes,
                    std::int64_t epoch, std::int64_t number) {
  const bool mixes = options.mixup_alpha > 0;
  const bool cuts = options.cutmix_alpha > 0;
  if (!mixes && !cuts) return batch;
  constexpr std::uint16_t kStream = 0xffff;  // the transforms of a sample have the first ones
  data::CounterRandom random({static_cast<std::uint64_t>(options.seed), epoch, number}, kStream);
  data::Example made = cuts && (!mixes || random.chance(0.5))
                           ? data::cutmix(batch, {.num_classes = num_classes, .alpha = options.cutmix_alpha}, random)
                           : data::mixup(batch, {.num_classes = num_classes, .alpha = options.mixup_alpha}, random);
  if (options.channels_last && made.data.dim() == 4)
    made.data = made.data.contiguous(torch::MemoryFormat::ChannelsLast);
  return made;
}

}  // namespace lockstep::trainer_detail
