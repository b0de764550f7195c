#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "lockstep/checkpoint/checkpoint.h"
#include "loop.h"
#include "nn/all_ranks.h"
#include "nn/device_backend.h"
#include "nn/same_on_all_ranks.h"

namespace lockstep {
namespace {

constexpr double kSmoothing = 0.98;  // of the moving average of the losses
constexpr double kDiverged = 4.0;    // times the lowest loss

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

// The generators of the CPU and of a GPU, as they are when this is made.
class Generators {
 public:
  explicit Generators(torch::Device device) : devices_{torch::kCPU} {
    if (device.is_cuda()) devices_.push_back(device);
    for (const torch::Device& one : devices_) states_.push_back(checkpoint::generator_state(one));
  }
  void restore() const {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      at::Generator generator = at::globalContext().defaultGenerator(devices_[i]);
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(states_[i]);
    }
  }

 private:
  std::vector<torch::Device> devices_;
  std::vector<at::Tensor> states_;
};

// The mean over ranks.
double mean_loss(const torch::Tensor& loss) {
  const std::vector<double> all = nn_detail::of_all_ranks(loss.item<double>(), nullptr);
  double sum = 0;
  for (const double value : all) sum += value;
  return sum / static_cast<double>(all.size());
}

// The rates grow by a constant factor, so differences of losses are slopes over the logarithm. The first losses are
// those of rates that are much too small, the last ones those of a training that diverges.
std::optional<double> steepest(const LearningRates& found) {
  constexpr std::size_t kSkippedAtBegin = 5;
  constexpr std::size_t kSkippedAtEnd = 3;
  std::optional<double> rate;
  double slope = 0;
  for (std::size_t i = kSkippedAtBegin; i + 1 + kSkippedAtEnd < found.losses.size(); ++i) {
    const double here = (found.losses[i + 1] - found.losses[i - 1]) / 2;
    if (here >= slope) continue;
    slope = here;
    rate = found.rates[i];
  }
  return rate;
}

}  // namespace

LearningRates Trainer::Loop::find_rate(Feed& feed, const LearningRateFinderOptions& options) {
  const auto own_lines = [&] {
    TORCH_CHECK_VALUE(options.steps >= 2 && options.min_rate > 0 && options.max_rate > options.min_rate,
                      "find_learning_rate: expected at least 2 steps and 0 < min_rate < max_rate, got ", options.steps,
                      " steps from ", options.min_rate, " to ", options.max_rate);
    return fmt::format("min_rate: {}\nmax_rate: {}\nsteps: {}\n", options.min_rate, options.max_rate, options.steps);
  };
  nn_detail::check_same_lines(nn_detail::DeviceBackend::for_host_data(nullptr, device_), own_lines,
                              "find_learning_rate needs the same options");
  checkpoint::Checkpoint now;
  now.add_model(*model_);
  now.add_optimizer(optimizer_);
  const checkpoint::Checkpoint before = now.clone();
  const Generators generators(device_);
  const bool was_training = model_->is_training();
  const auto scale = step_.scaler() ? step_.scaler()->state_dict() : std::map<std::string, double>();
  const double factor = std::pow(options.max_rate / options.min_rate, 1.0 / static_cast<double>(options.steps - 1));
  LearningRates found;
  double smooth = 0;
  double lowest = 0;
  model_->train();
  const bool is_held = rewind(feed);
  std::int64_t left = 0;
  for (std::int64_t i = 0; i < options.steps; ++i, --left) {
    if (left == 0) {
      if (i > 0) feed.loader().set_epoch(0);
      feed.begin();
      left = feed.loader().size();
    }
    const double rate = options.min_rate * std::pow(factor, static_cast<double>(i));
    set_rate(optimizer_, rate);
    const double loss = mean_loss(step_.run(feed, 1, /*trial=*/true).loss);
    if (!std::isfinite(loss)) break;
    smooth = kSmoothing * smooth + (1 - kSmoothing) * loss;
    const double corrected = smooth / (1 - std::pow(kSmoothing, static_cast<double>(i + 1)));
    if (i == 0 || corrected < lowest) lowest = corrected;
    found.rates.push_back(rate);
    found.losses.push_back(corrected);
    if (corrected > kDiverged * lowest) break;
  }
  feed.end();
  feed.loader().set_epoch(0);
  go_back(feed, is_held);
  static_cast<void>(step_.take_losses());
  before.restore_model(*model_);
  before.restore_optimizer(optimizer_);
  if (step_.scaler()) step_.scaler()->load_state_dict(scale);
  generators.restore();
  model_->train(was_training);
  optimizer_.zero_grad();
  found.suggestion = steepest(found);
  return found;
}

}  // namespace lockstep
