// Every option of DistributedDataParallel, synchronised batch normalisation, sharded optimizers and the helpers of
// training, each with each other: the same weights as PyTorch's after 40 steps (100 with LOCKSTEP_TEST_GRID=all), on
// the same data.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "lockstep/c10d/distributed.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/nn/clip_grad.h"
#include "lockstep/nn/distributed_data_parallel.h"
#include "lockstep/nn/exponential_moving_average.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/gradient_accumulation.h"
#include "lockstep/nn/mixed_precision.h"
#include "lockstep/nn/power_sgd.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/nn/zero_redundancy_optimizer.h"
#include "parity/option_grid.h"
#include "parity/option_net.h"
#include "support/process_ranks.h"
#include "support/python/python.h"
#include "support/scratch_folder.h"

namespace lockstep {
namespace {

// These are in ddp_options.py too. In 40 steps every option does all that it does: PowerSGD begins after 2, the
// scale grows after 20, and with 4 ranks the first one leaves a join after 19.
constexpr int kSteps = 40;
// With LOCKSTEP_TEST_GRID=all, except where PowerSGD magnifies the last digits from step to step, most of all with
// three columns or under Adam. Of PyTorch's own weights, a change by 4e-16 becomes one by 2.8e-6 with 3 ranks, and
// by 1.06e-3 with 4 ranks, in 100 steps with three columns: a comparison after them would say nothing.
constexpr int kManySteps = 100;
constexpr int kBatch = 4;

using Tensors = std::map<std::string, torch::Tensor>;
using test::Exclusion;
using test::Factor;
using test::Net;
// `bucket`, in MiB: one bucket, or five. `unused`: the layer `extra` takes part in every pass of no rank, or in those
// of some ranks. `weighted`: batches of different sizes, each sample with the same weight.
// `throws`: a join that ends with the first rank that has no more inputs. `pairs`: ranks 0 and 1 train by themselves,
// and so do 2 and 3. Ranks begin with different weights, which `init_sync` makes equal. `sparse`: a layer whose
// gradient is sparse. `device_ids` is ours alone: PyTorch takes none on the CPU. `checkpoint`: the whole model in one
// checkpointed segment, in several, in several that share a layer, in segments inside a segment; all of them by
// backward passes inside the backward pass; and `plain`, without these.
const std::vector<Factor> kFactors{
    {"world", {"2", "3", "4"}},
    {"hook", {"none", "noop", "bf16", "fp16", "bf16_feedback", "wrapped", "power1", "power2_cold", "power3_shapes"}},
    {"accumulate", {"1", "3"}},
    {"join", {"no", "initial", "active", "throws"}},
    {"static", {"0", "1"}},
    {"bucket", {"25", "0.004"}},
    {"view", {"1", "0"}},
    {"ignore", {"0", "1"}},
    {"clip", {"0", "0.05"}},
    {"ema", {"0", "1"}},
    {"precision", {"float", "autocast", "scaled", "masters"}},
    {"weighted", {"0", "1"}},
    {"norm", {"none", "plain", "sync"}},
    {"unused", {"no", "always", "ranks"}},
    {"optimizer", {"sgd", "adam", "zero_sgd", "zero_adam"}},
    {"group", {"world", "pairs"}},
    {"buffers", {"1", "0"}},
    {"init_sync", {"1", "0"}},
    {"sparse", {"0", "1"}},
    {"device_ids", {"0", "1"}},
    {"checkpoint", {"no", "whole", "segments", "shared", "nested", "plain"}},
};

const std::vector<std::string> kJoins{"initial", "active"};
const std::vector<std::string> kSharded{"zero_sgd", "zero_adam"};
const std::vector<std::string> kAdams{"adam", "zero_adam"};
const std::vector<std::string> kLowRank{"power1", "power2_cold", "power3_shapes"};
const std::vector<std::string> kHooks{"noop",    "bf16",   "fp16",        "bf16_feedback",
                                      "wrapped", "power1", "power2_cold", "power3_shapes"};
const std::vector<std::string> k16Bits{"autocast", "scaled", "masters"};
const std::vector<Exclusion> kExclusions{
    // A rank that has finished makes no collective calls before the end of a backward pass.
    {"join", kJoins, "norm", {"sync"}},
    {"join", kJoins, "weighted", {"1"}},
    // There ranks that have finished step with a sharded optimizer alone.
    {"join", kJoins, "precision", {"scaled"}},
    // With a hook PyTorch divides by all ranks whatever the option says.
    {"join", {"active"}, "hook", kHooks},
    // What the option promises.
    {"static", {"1"}, "unused", {"ranks"}},
    // A sharded optimizer needs the same gradients on every rank.
    {"optimizer", kSharded, "hook", {"noop"}},
    {"optimizer", kSharded, "ignore", {"1"}},
    // The random numbers of PowerSGD go by bucket, and with find_unused_parameters PyTorch keeps its first buckets.
    {"hook", kLowRank, "unused", {"always", "ranks"}},
    // The order of a segment's gradients is ours.
    {"hook", kLowRank, "checkpoint", {"plain"}},
    // In a join PyTorch takes a parameter for used that a finished rank has used before.
    {"join", kJoins, "unused", {"ranks"}},
    // PowerSGD magnifies each rounding to 16 bits, and so does Adam where a gradient is small.
    {"precision", k16Bits, "hook", kLowRank},
    {"precision", k16Bits, "optimizer", kAdams},
    {"world", {"3", "4"}, "optimizer", kAdams},
    // PyTorch keeps the averages of 16-bit parameters in 16 bits.
    {"precision", {"masters"}, "ema", {"1"}},
    // Beyond two ranks PyTorch's sums have other last digits, which 16 bits magnify.
    {"precision", k16Bits, "world", {"3", "4"}},
    // Four ranks make two pairs, and these do not go with four ranks.
    {"group", {"pairs"}, "world", {"2", "3"}},
    {"group", {"pairs"}, "optimizer", kAdams},
    {"group", {"pairs"}, "precision", k16Bits},
    // In PyTorch a hook gets sparse gradients too, a rank that has finished sends none, and there is no norm of them.
    // Adam takes none.
    {"sparse", {"1"}, "hook", kHooks},
    {"sparse", {"1"}, "join", kJoins},
    {"sparse", {"1"}, "clip", {"0.05"}},
    {"sparse", {"1"}, "optimizer", kAdams},
    {"sparse", {"1"}, "precision", k16Bits},
};

bool takes_whole_grid() {
  return ::getenv("LOCKSTEP_TEST_GRID") != nullptr;
}

class Case {
 public:
  explicit Case(test::Combination levels) : levels_(std::move(levels)) {}

  const std::string& operator[](const char* factor) const { return levels_.at(factor); }
  bool is_on(const char* factor) const { return levels_.at(factor) == "1"; }
  double number(const char* factor) const { return std::stod(levels_.at(factor)); }
  std::string text() const {
    std::string line;
    for (const auto& [factor, level] : levels_) line.append(line.empty() ? "" : " ").append(factor + "=" + level);
    return line;
  }
  bool rounds() const {
    const std::string& hook = (*this)["hook"];
    return hook == "bf16" || hook == "fp16" || hook == "bf16_feedback" || hook == "wrapped";
  }
  bool has_low_rank() const { return (*this)["hook"].starts_with("power"); }
  bool has_adam() const { return (*this)["optimizer"].ends_with("adam"); }
  bool has_16_bits() const { return (*this)["precision"] != "float"; }
  // Whether our last digits may differ from PyTorch's before anything is rounded to 16 bits.
  bool differs_in_last_digits() const {
    return number("world") > 2 || (*this)["norm"] != "none" || has_adam() || has_low_rank() || number("clip") > 0 ||
           is_on("sparse") || (*this)["checkpoint"] == "shared";
  }

  // These three are in ddp_options.py too.
  bool steps_when_finished() const {
    return ((*this)["join"] == "initial" || (*this)["join"] == "active") && (*this)["optimizer"].starts_with("zero");
  }
  torch::Dtype dtype() const {
    if (has_16_bits()) return torch::kFloat;
    const bool differs = number("world") > 2 || (*this)["norm"] != "none" || has_adam() || number("clip") > 0 ||
                         is_on("sparse") || (*this)["checkpoint"] == "shared";
    return differs ? torch::kDouble : torch::kFloat;
  }
  int steps() const {
    const bool three_columns = (*this)["hook"] == "power3_shapes" && (number("world") > 2 || dtype() == torch::kDouble);
    return !takes_whole_grid() || three_columns || (has_low_rank() && has_adam()) ? kSteps : kManySteps;
  }

  // How far our weights may be from PyTorch's, relative to the largest one; 0: the same bits. Up to two ranks the sums
  // are the same in any order, and halves are exact, except those of the smallest numbers in half precision, which Adam
  // magnifies. Beyond, PyTorch rounds 16-bit gradients when it divides and at each addition, and the engine rounds
  // once. Parameters in float that differ in the last digit give other 16-bit numbers.
  double tolerance() const {
    constexpr double kOf16Bits = 2e-2;
    if (rounds() && number("world") > 2) return kOf16Bits;
    if (has_16_bits() && (rounds() || differs_in_last_digits())) return kOf16Bits;
    const bool half = (*this)["hook"] == "fp16" || (*this)["hook"] == "wrapped";
    if (half && number("world") == 2) return has_adam() ? kOf16Bits : 1e-4;
    return rounds() || differs_in_last_digits() ? 1e-6 : 0;
  }

 private:
  test::Combination levels_;
};

// Every two settings that go together meet with 2, 3 or 4 ranks; with LOCKSTEP_TEST_GRID=all every three. In a world of
// one there is little to combine.
std::vector<Case> cases_of(int world, int part, int parts) {
  std::vector<Factor> factors = kFactors;
  for (Factor& factor : factors) {
    if (world == 1 && factor.name == "world") factor.levels = {"1"};
    if (world == 1 && factor.name == "group") factor.levels = {"world"};
  }
  const std::size_t strength = (world == 1 ? 1 : 2) + (takes_whole_grid() ? 1 : 0);
  std::vector<Case> cases;
  int number = 0;
  for (const test::Combination& one : test::combine(factors, kExclusions, strength)) {
    if (one.at("world") == std::to_string(world) && number++ % parts == part) cases.emplace_back(one);
  }
  return cases;
}

std::shared_ptr<CommHook> hook_of(const std::string& name) {
  if (name == "noop") return make_noop_hook();
  if (name == "bf16") return make_compress_hook(torch::kBFloat16);
  if (name == "fp16") return make_compress_hook(torch::kHalf);
  if (name == "bf16_feedback") return make_compress_hook(torch::kBFloat16, {.error_feedback = true});
  if (name == "wrapped") return make_compress_wrapper(torch::kHalf, make_compress_hook(torch::kHalf));
  PowerSgdOptions options{.start_power_sgd_iter = 2, .random_seed = 3};
  if (name == "power2_cold") {
    options.matrix_approximation_rank = 2;
    options.use_error_feedback = false;
    options.warm_start = false;
    options.orthogonalization_epsilon = 1e-8;
  } else if (name == "power3_shapes") {
    options.matrix_approximation_rank = 3;
    options.min_compression_rate = 1;
    options.batch_tensors_with_same_shape = true;
  }
  return make_power_sgd_hook(options);
}

// The ranks that train together, in a new group. Null: all.
ProcessGroup group_of(const Case& options) {
  return options["group"] == "pairs" ? split_group(get_rank() / 2) : nullptr;
}

// Ranks that do not use a layer reduce its bucket later than the others. A synchronised layer waits inside the backward
// pass, so it needs a group of its own then.
ProcessGroup group_of_norm(const Case& options, const ProcessGroup& group) {
  if (options["norm"] != "sync" || options["unused"] != "ranks") return group;
  return group ? group_of(options) : new_group();
}

Net make_model(const Case& options, int rank, const ProcessGroup& group) {
  torch::manual_seed(1234 + rank);
  Net model(test::NetLayers{.checkpoint = options["checkpoint"],
                            .extra = options["unused"] != "no",
                            .sparse = options.is_on("sparse"),
                            .norm = options["norm"] != "none"});
  model->to(options["precision"] == "masters" ? torch::kBFloat16 : options.dtype());
  if (options["norm"] != "none" && options["precision"] == "masters") model->norm->to(torch::kFloat);
  if (options["norm"] == "sync") convert_sync_batchnorm(model, group);
  return model;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<torch::Tensor>& parameters,
                                                        const ProcessGroup& group) {
  const torch::optim::SGDOptions sgd = torch::optim::SGDOptions(0.05).momentum(0.5);
  const torch::optim::AdamOptions adam(0.01);
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(parameters, sgd);
  if (name == "adam") return std::make_unique<torch::optim::Adam>(parameters, adam);
  const ZeroRedundancyOptions zero{.process_group = group};
  if (name == "zero_sgd") return std::make_unique<ZeroRedundancyOptimizer<torch::optim::SGD>>(parameters, sgd, zero);
  return std::make_unique<ZeroRedundancyOptimizer<torch::optim::Adam>>(parameters, adam, zero);
}

std::pair<torch::Tensor, torch::Tensor> batch(const Case& options, int rank, int step, int part) {
  auto generator = at::detail::createCPUGenerator(10000 * rank + 10 * step + part);
  const int size = kBatch + (options.is_on("weighted") ? rank : 0);
  const torch::Tensor both = torch::randn({size, test::kInputs + test::kOutputs}, generator).to(options.dtype());
  return {both.narrow(1, 0, test::kInputs), both.narrow(1, test::kInputs, test::kOutputs)};
}

class OptionsTraining {
 public:
  OptionsTraining(const Case& options, int rank)
      : options_(options),
        rank_(rank),
        group_(group_of(options)),
        group_of_norm_(group_of_norm(options, group_)),
        model_(make_model(options, rank, group_of_norm_)),
        ddp_(model_, ddp_options(options, group_)) {
    if (options["hook"] != "none") ddp_.register_comm_hook(hook_of(options["hook"]));
    if (options["precision"] == "masters") masters_.emplace(*model_);
    if (options["precision"] == "scaled") scaler_.emplace(GradScalerOptions{.init_scale = 1024, .growth_interval = 20});
    if (options.is_on("ema")) ema_.emplace(*model_, ExponentialMovingAverageOptions{.decay = 0.9});
    optimizer_ = make_optimizer(options["optimizer"], masters_ ? masters_->parameters() : ddp_.parameters(), group_);
  }

  void run() {
    const bool uneven = options_["join"] != "no";
    const bool throws = options_["join"] == "throws";
    const auto loop = [&] {
      // The highest rank is the last: where it finishes before others, running statistics are not PyTorch's
      // (docs/ddp.md, "What is different from PyTorch").
      const int fewer = uneven ? 7 * (get_world_size() - 1 - rank_) : 0;
      for (int number = 0; number < options_.steps() - fewer; ++number) step(number);
    };
    JoinOptions join_options{.divide_by_initial_world_size = options_["join"] != "active",
                             .enable = uneven,
                             .throw_on_early_termination = throws};
    if (options_.steps_when_finished()) join_options.after_shadow_pass = [this] { take_step(); };
    bool thrown = false;
    try {
      ddp_.join(loop, join_options);
    } catch (const UnevenInputsError&) {
      thrown = true;
    }
    EXPECT_EQ(thrown, throws && get_world_size() > 1) << options_.text();
  }

  // Parameters by name, and running statistics where they are the same in Python: its averages have those of the
  // module.
  Tensors result() const {
    const Tensors copies = ema_ ? ema_->tensors() : masters_ ? masters_->tensors() : Tensors();
    Tensors tensors;
    for (const auto& item : model_->named_parameters()) {
      const auto copy = copies.find(item.key());
      tensors[item.key()] = copy != copies.end() ? copy->second : item.value().detach();
    }
    if (ema_) return tensors;
    for (const auto& item : model_->named_buffers()) {
      if (!item.key().ends_with("num_batches_tracked")) tensors[item.key()] = item.value();
    }
    return tensors;
  }

 private:
  static DistributedDataParallelOptions ddp_options(const Case& options, const ProcessGroup& group) {
    DistributedDataParallelOptions result{.process_group = group,
                                          .broadcast_buffers = options.is_on("buffers"),
                                          .bucket_cap_mb = options.number("bucket"),
                                          .static_graph = options.is_on("static"),
                                          .gradient_as_bucket_view = options.is_on("view"),
                                          .init_sync = options.is_on("init_sync")};
    if (options.is_on("device_ids")) {
      result.device_ids = {torch::kCPU};
      result.output_device = torch::kCPU;
    }
    if (options.is_on("ignore")) result.ignored_parameters = {"second.weight"};
    return result;
  }

  torch::Tensor loss(int number, int part) {
    auto [x, y] = batch(options_, rank_, number, part);
    if (masters_) x = x.to(torch::kBFloat16);
    const bool with_extra = options_["unused"] == "ranks" && (number + rank_) % 3 != 0;
    torch::Tensor output;
    {
      std::optional<Autocast> autocast;
      if (options_["precision"] == "autocast") autocast.emplace(torch::kCPU);
      if (scaler_) autocast.emplace(torch::kCPU, torch::kHalf);
      output = ddp_.forward(x, with_extra);
    }
    const torch::Tensor errors = (output.to(options_.dtype()) - y).square();
    const bool weighted = options_.is_on("weighted");
    const torch::Tensor mean = weighted ? errors.mean(1).sum() * sample_mean_factor(x.size(0), group_) : errors.mean();
    return scaler_ ? scaler_->scale(mean) : mean;
  }

  void step(int number) {
    model_->zero_grad();
    const int parts = static_cast<int>(options_.number("accumulate"));
    accumulate_gradients(ddp_, parts, [&](int part) { return loss(number, part); });
    take_step();
  }

  // What follows the backward pass.
  void take_step() {
    if (masters_) masters_->copy_gradients();
    if (const double limit = options_.number("clip"); limit > 0) {
      if (scaler_) scaler_->unscale_(*optimizer_);
      masters_ ? clip_grad_norm_(masters_->named_parameters(), limit) : clip_grad_norm_(*model_, limit);
    }
    if (scaler_) {
      scaler_->step(*optimizer_);
      scaler_->update();
    } else {
      optimizer_->step();
    }
    if (masters_) masters_->copy_parameters();
    if (ema_) ema_->update();
  }

  const Case options_;
  const int rank_;
  const ProcessGroup group_;
  const ProcessGroup group_of_norm_;
  Net model_;
  DistributedDataParallel<Net> ddp_;
  std::optional<MasterWeights> masters_;
  std::optional<GradScaler> scaler_;
  std::optional<ExponentialMovingAverage> ema_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

std::string name_in_file(std::size_t number, const std::string& name) {
  return std::to_string(number) + "/" + name;
}

void compare(const Case& options, std::size_t number, int rank, const Tensors& ours, const Tensors& pythons) {
  for (const auto& [name, actual] : ours) {
    if (!name.starts_with(name_in_file(number, ""))) continue;
    ASSERT_TRUE(pythons.contains(name)) << options.text() << ": Python has no " << name;
    const torch::Tensor& expected = pythons.at(name);
    const double difference = (actual - expected).abs().max().item<double>();
    const double allowed = options.tolerance() * expected.abs().max().item<double>();
    EXPECT_LE(difference, allowed) << options.text() << ": " << name << " of rank " << rank;
  }
}

// By world size, and a part of its cases: of so many parts. Two ranks have most of them.
class DdpOptionsParity : public testing::TestWithParam<std::tuple<int, int, int>> {};
INSTANTIATE_TEST_SUITE_P(One, DdpOptionsParity, testing::Values(std::tuple(1, 0, 1)));
INSTANTIATE_TEST_SUITE_P(Two, DdpOptionsParity,
                         testing::Combine(testing::Values(2), testing::Range(0, 4), testing::Values(4)));
INSTANTIATE_TEST_SUITE_P(More, DdpOptionsParity,
                         testing::Combine(testing::Values(3, 4), testing::Range(0, 2), testing::Values(2)));

TEST_P(DdpOptionsParity, ReachesPythonsWeights) {
  constexpr std::chrono::seconds kDeadline(200);
  const auto [world, part, parts] = GetParam();
  const std::vector<Case> cases = cases_of(world, part, parts);
  const std::set<int> compared{0, world - 1};
  const test::SharedScratchFolder folder;
  const auto path = [&](const std::string& whose, int rank) { return folder.path(whose + "-" + std::to_string(rank)); };
  const auto run = [&](int rank) {
    const ProcessGroupGuard group;
    torch::set_num_threads(1);
    Tensors tensors;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      OptionsTraining training(cases[i], rank);
      training.run();
      for (const auto& [name, tensor] : training.result()) tensors[name_in_file(i, name)] = tensor;
    }
    if (compared.contains(rank))
      checkpoint::write_tensor_file(path("ours", rank), {.tensors = tensors, .metadata = {}});
  };
  test::run_processes(world, run, kDeadline);
  std::ofstream list(folder.path("cases"));
  for (const Case& one : cases) list << one.text() << '\n';
  list.close();
  test::run_python("ddp_options.py", {folder.path("cases"), folder.path().native(), std::to_string(world)});
  for (const int rank : compared) {
    const Tensors ours = checkpoint::read_tensor_file(path("ours", rank)).tensors;
    const Tensors pythons =
        checkpoint::read_tensor_file(path("pythons", rank), checkpoint::Checksum::kIfPresent).tensors;
    EXPECT_EQ(ours.size(), pythons.size());
    for (std::size_t i = 0; i < cases.size(); ++i) compare(cases[i], i, rank, ours, pythons);
  }
}

}  // namespace
}  // namespace lockstep
